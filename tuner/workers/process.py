"""``WorkerProcess``: a process that answers requests over pipes, restarted when it dies or hangs."""

from __future__ import annotations

import collections
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernels.base.spec import CompileError
from tilewright.errors import (
    ArtifactError,
    DeviceUnavailable,
    InvalidProblem,
    LaunchError,
    PreconditionFailed,
    TilewrightError,
)
from tuner.workers.child import Child
from tuner.workers.frames import ChannelTimeout, Frame, FrameError

KILLED = "SIGKILL"
_STARTS = 3
_START_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 2.0
_log = logging.getLogger("tilewright.workers")


def python(*arguments: str) -> list[str]:
    """The command that runs this interpreter without the current folder on its path."""
    return [sys.executable, "-P", *arguments]


class WorkerError(TilewrightError):
    """Root of the errors of worker processes."""


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


class WorkerNotStarted(WorkerError):
    """The process died or hung before it was ready for its first call."""


class WorkerRefused(WorkerNotStarted):
    """The process refused to get ready.

    Attributes:
        reason: its own error.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class WorkerBusy(WorkerError):
    """The process was still busy with earlier calls when the wait ended."""


def was_killed(error: Exception) -> bool:
    """Whether a process ended because others killed it, as the OOM killer does."""
    return isinstance(error, WorkerDied) and error.cause == KILLED


class FairLock:
    """A fair mutex: first come, first served, so that a short request waits only for requests before it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Take the lock; False if that takes longer than ``timeout_s`` seconds (None: no limit)."""
        mine = threading.Event()
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            self._waiting.append(mine)
        try:
            if mine.wait(timeout_s):
                return True
        except BaseException:  # such as KeyboardInterrupt: else the lock would go to a thread that left
            if self._withdraw(mine):
                self.release()
            raise
        return self._withdraw(mine)

    def _withdraw(self, mine: threading.Event) -> bool:
        """Stop waiting; True if the lock was handed over before."""
        with self._guard:
            if mine.is_set():
                return True
            self._waiting.remove(mine)
            return False

    def release(self) -> None:
        """Hand the lock to the thread that has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class WorkerProcess:
    """Runs ``argv``, a program of :mod:`tuner.workers.server`, and calls it, one call at a time in order.

    The first call starts the process, and so does the first call after it died or was killed. A death between
    calls fails no call. The process has a session of its own, so that Ctrl-C does not reach it and a kill
    includes its children.
    """

    def __init__(self, argv: Sequence[str], check_back: Callable[[int], None] = lambda _pid: None) -> None:
        """``check_back`` is called with the id of a process that ended before the next one starts; what it
        raises fails the call, and the next call asks again."""
        self._argv = list(argv)
        self._check_back = check_back
        self._lost_pid = 0
        self._call_lock = FairLock()
        self._child: Child | None = None
        self._lost: str | None = None
        self._restarts: collections.Counter[str] = collections.Counter()
        self._closed = False

    @property
    def restarts(self) -> int:
        """The number of starts after the first one."""
        return sum(self.restart_reasons.values())

    @property
    def restart_reasons(self) -> dict[str, int]:
        """The number of restarts by the end of the process before.

        It ``died``, had a ``timeout``, ``gave-up`` (it could not start or go on), or was ``abandoned`` (its
        caller was interrupted).
        """
        return dict(self._restarts)

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        child = self._child
        return child.pid if child else None

    def greeting(self) -> dict[str, Any]:
        """The data that the process sent when it was ready; starts it if needed.

        Raises:
            WorkerNotStarted: it could not start.
            TilewrightError, RuntimeError: it refused, with its own error.
        """
        try:
            with self._exclusive(None):
                return self._running().greeting
        except WorkerRefused as error:
            raise error.reason from None

    def call(
        self,
        header: dict[str, Any],
        payloads: Sequence[bytes] = (),
        *,
        timeout_s: float,
        wait_s: float | None = None,
    ) -> Frame:
        """Send a request and return the reply.

        Args:
            timeout_s: limit of the call in seconds, without the wait and without the start of a process.
            wait_s: limit of the wait for earlier calls in seconds; None for no limit.

        Raises:
            WorkerBusy: earlier calls took longer than ``wait_s`` seconds.
            WorkerNotStarted: no process runs and none could start, or that refused.
            WorkerDied: the process ended; the message names the signal, and the log has its last output.
            WorkerTimeout: no reply within ``timeout_s`` seconds; the process was killed.
            TilewrightError: the process refused; the error has its own class.
            RuntimeError: a programming error in the process, its traceback as a note.
        """
        with self._exclusive(wait_s):
            child = self._running()
            request = Frame(header, tuple(payloads))
            reply = self._exchange(child, request, timeout_s)
            if reply.header.get("dying"):
                self._discard(child, "gave-up")
            raise_refusal(reply.header)
            return reply

    def close(self) -> None:
        """End the process: gracefully if it is idle, by a kill if a call does not end soon."""
        self._closed = True
        if not self._call_lock.acquire(_CLOSE_TIMEOUT_S):
            child = self._child
            if child:
                child.interrupt()
            self._call_lock.acquire()
        try:
            if self._child:
                self._child.finish(_CLOSE_TIMEOUT_S)
                self._child = None
        finally:
            self._call_lock.release()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _exclusive(self, wait_s: float | None) -> Iterator[None]:
        if not self._call_lock.acquire(wait_s):
            raise WorkerBusy(f"still busy after {wait_s:g} s; try again later or wait longer")
        try:
            self._check_open()
            yield
        finally:
            self._call_lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the worker process was closed")

    def _running(self) -> Child:
        if self._child and self._child.exited:
            self._discard(self._child, "died")
        return self._child or self._started()

    def _started(self, tries: int = _STARTS) -> Child:
        """A new process that is ready; one that others kill before is started again."""
        try:
            return self._start()
        except (WorkerDied, WorkerTimeout) as error:
            self._check_open()
            if tries > 1 and was_killed(error):
                return self._started(tries - 1)
            raise WorkerNotStarted(str(error)) from error

    def _start(self) -> Child:
        if self._lost:
            self._check_back(self._lost_pid)
            self._check_open()
            self._restarts[self._lost] += 1
        self._child = child = Child.spawn(self._argv)
        ready = self._exchange(child, None, _START_TIMEOUT_S)
        if ready.header["kind"] != "ready":
            self._discard(child, "gave-up")
            try:
                raise_refusal(ready.header)
            except (TilewrightError, RuntimeError) as error:
                raise WorkerRefused(error) from error
        child.greeting = ready.header
        return child

    def _exchange(self, child: Child, request: Frame | None, timeout_s: float) -> Frame:
        deadline = time.monotonic() + timeout_s
        try:
            self._check_open()  # NOTE: close() may have looked before there was a process to kill
            if request:
                child.channel.send(request, deadline)
            return child.channel.receive(deadline)
        except ChannelTimeout as error:
            self._discard(child, "timeout")
            raise WorkerTimeout(f"no answer within {timeout_s:g} s; the process was killed") from error
        except FrameError as error:
            self._discard(child, "died")
            cause = child.cause()
            raise WorkerDied(f"the process ended with {cause}: {error}", cause) from error
        except BaseException:
            self._discard(child, "abandoned")  # NOTE: else the next call would read this reply
            raise

    def _discard(self, child: Child, reason: str) -> None:
        self._child, self._lost, self._lost_pid = None, reason, child.pid
        child.kill()
        # NOTE: for the log alone: it shows paths of this machine, and messages of errors reach callers.
        if tail := child.tail():
            _log.warning("process %d (%s) printed last:\n%s", child.pid, reason, tail)


_PLAIN: dict[str, type[TilewrightError]] = {
    error.__name__: error for error in (ArtifactError, CompileError, DeviceUnavailable, InvalidProblem)
}
_LAUNCH: dict[str, type[LaunchError]] = {error.__name__: error for error in (LaunchError, PreconditionFailed)}


def refusal(error: BaseException) -> dict[str, Any]:
    """The reply header that carries ``error``; ``dying`` is true if the process must end."""
    name = type(error).__name__
    if isinstance(error, LaunchError) and name in _LAUNCH:
        detail = {"code": error.code, "sticky": error.sticky}
        return {
            "kind": "refused",
            "error": name,
            "message": str(error),
            "launch": detail,
            "dying": error.sticky,
        }
    if name in _PLAIN:
        return {"kind": "refused", "error": name, "message": str(error)}
    return {"kind": "error", "traceback": "".join(traceback.format_exception(error))}


def raise_refusal(header: dict[str, Any]) -> None:
    """Raise the error of a :func:`refusal`; do nothing for other replies.

    Raises:
        TilewrightError: an expected error, in its own class.
        RuntimeError: a programming error in the other process, its traceback as a note.
    """
    if header["kind"] == "error":
        failed = RuntimeError("a worker process failed")
        failed.add_note(header["traceback"])
        raise failed
    if header["kind"] == "refused":
        launch = _LAUNCH.get(header["error"])
        if launch:
            raise launch(header["message"], **header["launch"])
        raise _PLAIN[header["error"]](header["message"])
