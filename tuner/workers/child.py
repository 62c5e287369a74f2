"""``Child``: a running process with a pipe each way, which can be killed with all that it started."""

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

from kernels.compiler.cc import remove_folders
from tilewright.errors import DeviceUnavailable
from tuner.workers.frames import Channel

_REAP_TIMEOUT_S = 60.0
_TAIL_CHUNKS = 64
_TAIL_CHARACTERS = 4000

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
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            request_read, request_write = os.pipe()
            theirs.callback(os.close, request_read)
            ours.callback(os.close, request_write)
            reply_read, reply_write = os.pipe()
            theirs.callback(os.close, reply_write)
            ours.callback(os.close, reply_read)
            pipes = f"--pipes={request_read},{reply_write}"
            start = functools.partial(_popen, [*argv, pipes], (request_read, reply_write))
            child = cls(_spawner().submit(start).result(), Channel(reply_read, request_write))
            ours.pop_all()  # the channel closes them
            return child

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
        try:
            self._reap()
        finally:
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
