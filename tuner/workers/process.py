"""``WorkerProcess``: a process that answers requests over pipes, restarted when it dies or hangs."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from kernels.base.spec import CompileError
from kernels.compiler.cc import remove_folders
from tilewright.errors import (
    ArtifactError,
    DeviceUnavailable,
    InvalidProblem,
    LaunchError,
    PreconditionFailed,
    TilewrightError,
)
from tuner.workers.fair_lock import FairLock
from tuner.workers.frames import Channel, ChannelTimeout, Frame, FrameError

_REAP_TIMEOUT_S = 60.0
_TAIL_CHUNKS = 64
_TAIL_CHARACTERS = 4000
_log = logging.getLogger("tilewright.workers")

# NOTE: after each product OpenBLAS keeps idle threads spinning for tens of milliseconds, on the cores that
# the next candidate of a race needs: a two-thread kernel is then measured twice as slow.
# CuPy's reductions through CUB cost six seconds of compiling at the first use on a machine, its own 0.2 s.
_ENVIRONMENT = {"OPENBLAS_THREAD_TIMEOUT": "4", "CUPY_ACCELERATORS": ""}


class Child:
    """A running process in a session of its own; the end of its output is kept."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self._process = process
        self.channel = channel
        self.greeting: dict[str, Any] = {}
        self._printed: collections.deque[bytes] = collections.deque(maxlen=_TAIL_CHUNKS)
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    @classmethod
    def spawn(cls, argv: Sequence[str]) -> Child:
        """Start ``argv`` with ``--pipes=READ,WRITE`` added."""
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        try:
            pipes = f"--pipes={request_read},{reply_write}"
            start = functools.partial(_popen, [*argv, pipes], (request_read, reply_write))
            process = _spawner().submit(start).result()
        finally:
            os.close(request_read)
            os.close(reply_write)
        return cls(process, Channel(reply_read, request_write))

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self._process.pid

    @property
    def exited(self) -> bool:
        """Whether it has ended; it is not reaped here, so that its process id stays unique."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self, timeout_s: float) -> None:
        """Close the request pipe, wait ``timeout_s`` seconds for the process to end, then kill it."""
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if self._process.returncode is None:
            self._kill_group()
        self._reap()

    def kill(self) -> None:
        """Kill the process with its children, reap it and remove the files of its compiler; an exit status
        that it had already is kept."""
        self._kill_group()
        self._reap()
        self.channel.close()
        remove_folders(self.pid)

    def interrupt(self) -> None:
        """Kill the process while another thread waits for its answer; that thread will reap it."""
        self._process.kill()

    def cause(self) -> str:
        """The signal or exit code of the reaped process, in words."""
        status = self._process.returncode
        if status >= 0:
            return f"exit code {status}"
        # NOTE: most real-time signals have no name.
        return signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"

    def tail(self) -> str:
        """The end of the process's output; empty if it printed nothing."""
        return b"".join(self._printed).decode(errors="replace").strip()[-_TAIL_CHARACTERS:]

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        try:
            self._process.wait(_REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DeviceUnavailable(
                f"process {self._process.pid} cannot be killed: its driver is stuck; reset the device"
            ) from error
        self._reader.join(1.0)

    def _collect(self) -> None:
        with _stdout(self._process) as printed:
            while chunk := os.read(printed.fileno(), 1024):
                self._printed.append(chunk)


def _popen(argv: list[str], fds: tuple[int, int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=fds,
        start_new_session=True,
        env={**os.environ, **_ENVIRONMENT},
    )


@functools.cache
def _spawner() -> concurrent.futures.ThreadPoolExecutor:
    # NOTE: the parent-death signal fires when the *thread* that started the child ends, so all
    # children are started by one thread that lives as long as this process.
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="spawner")


def _stdout(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdout is None:
        raise RuntimeError("the process was started without a pipe for its output")
    return process.stdout


_START_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 2.0


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


class WorkerBusy(WorkerError):
    """The process was still busy with earlier calls when the wait ended."""


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
            WorkerDied, WorkerTimeout, TilewrightError: it could not start.
        """
        with self._exclusive(None):
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

        Args:
            timeout_s: limit of the call in seconds, without the wait and without the start of a process.
            wait_s: limit of the wait for earlier calls in seconds; None for no limit.

        Raises:
            WorkerBusy: earlier calls took longer than ``wait_s`` seconds.
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
            if self._closed:
                raise RuntimeError("the worker process was closed")
            yield
        finally:
            self._call_lock.release()

    def _running(self) -> Child:
        if self._child and self._child.exited:
            self._discard(self._child, "died")
        if self._child is None:
            if self._lost:
                self._check_back(self._lost_pid)
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
