"""Real servers that start in a quarter of the time: forked from a process that has imported the service.

That process is multiprocessing's fork server, which runs no thread; a server shares nothing with another one
but the modules that were loaded when it began.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from api_server import STOP_S, announced_url, environment


@dataclasses.dataclass
class ForkedServer:
    """A running service."""

    process: ForkServerProcess
    url: str

    def kill(self) -> None:
        """SIGKILL; it must have been alive."""
        self.process.kill()
        self.process.join(STOP_S)
        assert self.process.exitcode == -signal.SIGKILL

    def finish(self) -> None:
        """Stop it where it still runs."""
        self.process.terminate()
        self.process.join(STOP_S)
        self.process.kill()
        self.process.join()


def fork(folder: Path, **settings: object) -> ForkedServer:
    """Start a server with the database and the log of a folder."""
    context = _context()
    reader, writer = context.Pipe(duplex=False)
    log = folder / "log"
    process = context.Process(target=_serve, args=(environment(folder, **settings), log, writer))
    process.start()
    writer.close()
    with os.fdopen(os.dup(reader.fileno())) as printed:
        reader.close()
        return ForkedServer(process, announced_url(printed, log))


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["service.app", "service.cli"])
    return context


def _serve(environ: dict[str, str], log: Path, stdout: Connection) -> None:
    from service.cli import app

    os.environ.clear()
    os.environ.update(environ)
    with log.open("a") as errors:
        os.dup2(errors.fileno(), 2)
    os.dup2(stdout.fileno(), 1)
    app(["serve", "--json"])
