"""One run of a child process: its pipes, its end, and the last of what it printed."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Any

from tilewright.errors import DeviceUnavailable
from tuner.frames import Channel

_REAP_TIMEOUT_S = 60.0
_TAIL_CHUNKS = 64
_TAIL_CHARACTERS = 4000

# NOTE: after each product OpenBLAS keeps its idle threads spinning for tens of milliseconds, on the
# very cores that the next contender of a race needs: a two-thread kernel then reads twice as slow.
_ENVIRONMENT = {"OPENBLAS_THREAD_TIMEOUT": "4"}


class Child:
    """A running process in a session of its own; everything it prints goes into a bounded tail."""

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
        """Its process id, and that of its group."""
        return self._process.pid

    @property
    def exited(self) -> bool:
        """It has ended; it is left to be reaped, so that its process id cannot name another one."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self, timeout_s: float) -> None:
        """Let the process see the end of its requests, wait ``timeout_s`` seconds, then kill what is left."""
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if self._process.returncode is None:
            self._kill_group()
        self._reap()

    def kill(self) -> None:
        """Kill the process with its children and reap it; its own exit status stands if it had one."""
        self._kill_group()
        self._reap()
        self.channel.close()

    def interrupt(self) -> None:
        """Kill the process from another thread than the one that waits for its answer and will reap it."""
        self._process.kill()

    def cause(self) -> str:
        """How the reaped process ended."""
        status = self._process.returncode
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"

    def tail(self) -> str:
        """The end of what the process printed, on lines of its own; empty if nothing."""
        text = b"".join(self._printed).decode(errors="replace").strip()[-_TAIL_CHARACTERS:]
        return f"\n{text}" if text else ""

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
