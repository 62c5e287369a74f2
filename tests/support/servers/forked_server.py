"""Servers forked from a process that has imported the service, so that a start costs no imports."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import quick_worker

from service.cli.main import run
from service.engine import event_feed
from tuner.workers import bench

# What a service or a client imports only once it runs.
_AT_RUN_TIME = (
    "anyio._backends._asyncio",
    "cuda.pathfinder",
    "numpy.random",
    "numpy.testing",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
)


class ForkedProcess:
    """A running service, with the attributes and methods of a ``subprocess.Popen`` that tests use.

    Attributes:
        stdout: what it prints.
    """

    def __init__(self, arguments: Sequence[str], environ: dict[str, str], log: Path, quick: bool) -> None:
        """``quick``: its device's process is :mod:`quick_worker`, and it tells events sooner."""
        reader, writer = context().Pipe(duplex=False)
        # NOTE: daemonic, so that the end of a test run that was interrupted ends it too.
        given = arguments, environ, log, quick, writer
        self._process = context().Process(target=_serve, args=given, daemon=True)
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        reader.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("serve", timeout or 0.0)
        return self.returncode

    def send_signal(self, sign: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, sign)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def context() -> ForkServerContext:
    """Forks from a process that has imported the service and the client; this process has but one of them."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["service.cli.serve", "tilewright.client", *_AT_RUN_TIME, __name__])
    return found


def _serve(
    arguments: Sequence[str], environ: dict[str, str], log: Path, quick: bool, stdout: Connection
) -> None:
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    os.environ.clear()
    os.environ.update(environ)
    with log.open("a") as errors:
        os.dup2(errors.fileno(), 2)
    os.dup2(stdout.fileno(), 1)
    stdout.close()
    if quick:
        bench.python = quick_worker.command
        event_feed.POLL_S = 0.02
    sys.argv[1:] = arguments
    run()


def _end_with_the_tests() -> None:
    """A run that was killed ends no process."""
    if tests := multiprocessing.parent_process():
        tests.join()
        os.kill(os.getpid(), signal.SIGTERM)
