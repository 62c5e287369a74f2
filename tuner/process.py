"""A supervised child process that answers frames: a crash or a hang costs one call, not the caller."""

from __future__ import annotations

import collections
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.errors import TilewrightError
from tuner.child import Child
from tuner.frames import ChannelTimeout, Frame, FrameError
from tuner.refusals import raise_refusal
from tuner.turns import Turns

_START_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 2.0


def python(*arguments: str) -> list[str]:
    """The command that runs this interpreter without the current folder on its path."""
    return [sys.executable, "-P", *arguments]


class WorkerError(TilewrightError):
    """Root of what can go wrong with a worker process."""


class WorkerDied(WorkerError):
    """The process ended in the middle of a call.

    Attributes:
        cause: name of the signal, or the exit code in words.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class WorkerTimeout(WorkerError):
    """The process did not answer in time and was killed."""


class WorkerBusy(WorkerError):
    """The process was still answering others when the wait ended."""


class WorkerProcess:
    """Runs ``argv`` and calls it, one call at a time, in the order of asking; it serves :mod:`tuner.worker`.

    The process is started at the first call and again at the first call after it died or was killed;
    a death between calls costs none.
    It runs in a session of its own, so that Ctrl-C does not reach it and a kill takes its children along.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._turns = Turns()
        self._child: Child | None = None
        self._lost: str | None = None
        self._restarts: collections.Counter[str] = collections.Counter()
        self._closed = False

    @property
    def restarts(self) -> int:
        """How often a process was started after the first one."""
        return sum(self.restart_reasons.values())

    @property
    def restart_reasons(self) -> dict[str, int]:
        """The same by what became of the process before: ``died``, ``timeout``, ``gave-up`` (it could not
        start or not go on) or ``abandoned`` (its caller was interrupted)."""
        return dict(self._restarts)

    @property
    def pid(self) -> int | None:
        """Process id, None while none runs."""
        child = self._child
        return child.pid if child else None

    def greeting(self) -> dict[str, Any]:
        """What the process told when it was ready; starts it where needed.

        Raises:
            WorkerDied, WorkerTimeout, TilewrightError: it could not start.
        """
        with self._turn(None):
            return self._running().greeting

    def call(
        self,
        header: dict[str, Any],
        payloads: Sequence[bytes] = (),
        *,
        timeout_s: float,
        wait_s: float | None = None,
    ) -> Frame:
        """Send a request and return the reply.

        ``timeout_s`` bounds the call itself, not the wait for earlier calls (``wait_s``, None: no bound)
        and not the start of a process.

        Raises:
            WorkerBusy: earlier calls took longer than ``wait_s`` seconds.
            WorkerDied: the process ended; the message names the signal and ends with its stderr.
            WorkerTimeout: no reply within ``timeout_s`` seconds; the process was killed.
            TilewrightError: the process refused, in the error's own class.
            RuntimeError: a programming error in the process, with its traceback.
        """
        with self._turn(wait_s):
            child = self._running()
            request = Frame(header, tuple(payloads))
            reply = self._exchange(child, request, timeout_s)
            if reply.header.get("dying"):
                self._discard(child, "gave-up")
            raise_refusal(reply.header)
            return reply

    def close(self) -> None:
        """End the process: gracefully when idle, by a kill when a call does not end soon."""
        self._closed = True
        if not self._turns.acquire(_CLOSE_TIMEOUT_S):
            child = self._child
            if child:
                child.interrupt()
            self._turns.acquire()
        try:
            if self._child:
                self._child.finish(_CLOSE_TIMEOUT_S)
                self._child = None
        finally:
            self._turns.release()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _turn(self, wait_s: float | None) -> Iterator[None]:
        if not self._turns.acquire(wait_s):
            raise WorkerBusy(f"still busy after {wait_s:g} s; try again later or wait longer")
        try:
            if self._closed:
                raise RuntimeError("the worker process was closed")
            yield
        finally:
            self._turns.release()

    def _running(self) -> Child:
        if self._child and self._child.exited:
            self._discard(self._child, "died")
        if self._child is None:
            if self._lost:
                self._restarts[self._lost] += 1
            self._child = Child.spawn(self._argv)
            ready = self._exchange(self._child, None, _START_TIMEOUT_S)
            if ready.header["kind"] != "ready":
                self._discard(self._child, "gave-up")
                raise_refusal(ready.header)
            self._child.greeting = ready.header
        return self._child

    def _exchange(self, child: Child, request: Frame | None, timeout_s: float) -> Frame:
        deadline = time.monotonic() + timeout_s
        try:
            if request:
                child.channel.send(request, deadline)
            return child.channel.receive(deadline)
        except ChannelTimeout as error:
            tail = self._discard(child, "timeout")
            raise WorkerTimeout(f"no answer within {timeout_s:g} s; the process was killed{tail}") from error
        except FrameError as error:
            tail = self._discard(child, "died")
            cause = child.cause()
            raise WorkerDied(f"the process ended with {cause}: {error}{tail}", cause) from error
        except BaseException:
            self._discard(child, "abandoned")  # NOTE: the reply would be taken for that of the next call
            raise

    def _discard(self, child: Child, reason: str) -> str:
        self._child, self._lost = None, reason
        child.kill()
        return child.tail()
