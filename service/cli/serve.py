"""``tilewright serve``."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import signal
import socket
import sys
from contextlib import closing
from types import FrameType
from typing import Annotated, Any

import typer
import uvicorn
from fastapi import FastAPI

from service import logs
from service.cli.output import AsJson, print_json
from service.engine.base import Engine
from service.http.access import Exposed
from service.server import connections
from service.server.app import create_app
from service.settings import Settings

_GRACE_S = 3
_M_ARENA_MAX = -8  # of malloc.h
_SWITCH_S = 0.0005
_COLLECT_AFTER = 2000, 10, 20  # the youngest objects, then the rounds of older ones; 700, 10, 10 by default
log = logging.getLogger("tilewright.serve")


class _Server(uvicorn.Server):
    """Announces itself once it listens, and tells the engine to stop as soon as a signal arrives.

    Attributes:
        signal: what stopped it, the first of several; 0 if nothing did.
    """

    def __init__(
        self, config: uvicorn.Config, engine: Engine, announcement: dict[str, Any], as_json: bool
    ) -> None:
        super().__init__(config)
        self.signal = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine = engine
        self._announcement = announcement
        self._as_json = as_json

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._as_json:
            print_json(self._announcement)
        else:
            typer.echo(f"tilewright listens at {self._announcement['url']} (documentation at /docs)")
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.should_exit:
            return  # NOTE: uvicorn would skip the end of the application, which stops within stop_s
        self.should_exit = True
        self.signal = sig
        # NOTE: not from the handler itself: it may interrupt the very code that holds the locks.
        if self._loop:
            self._loop.call_soon_threadsafe(self._engine.begin_stop)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen at (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at (8080); 0 takes a free one.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="sqlite:///path or postgresql+psycopg://...")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="local, or ray for the devices of a Ray cluster (local).")
    ] = None,
    ray_address: Annotated[str | None, typer.Option(help="host:port of the cluster's head.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Device to use; repeat for several.")] = None,
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Allow a host other than loopback although no key guards it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the service until Ctrl-C or SIGTERM; running jobs resume at the next start."""
    settings = _settings(
        host=host,
        port=port,
        database_url=database_url,
        engine=engine,
        ray_address=ray_address,
        devices=tuple(device or ()) or None,
        allow_remote=allow_remote or None,
    )
    logs.configure(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn.error").addFilter(_without_force)
    share_arena()
    answer_promptly()
    if settings.allow_remote:
        log.warning("unless a key was made, anyone who reaches port %s can use it", settings.port)
    with closing(_listen(settings)) as listener:
        app = _app(settings)
        found: Engine = app.state.service.engine
        found.open()
        server = _Server(_config(app, settings), found, _announcement(listener, found), as_json)
        server.run(sockets=[listener])
    if server.signal == signal.SIGINT:
        raise typer.Exit(130)
    if not server.started:
        raise typer.Exit(1)


def answer_promptly() -> None:
    """Have requests, and the steps of jobs, wait less for other threads and for garbage collection."""
    # NOTE: by default the event loop waits 5 ms whenever another thread, such as one that makes a config set,
    # has the interpreter: several times for each request, since it lets go of it to read and to send.
    sys.setswitchinterval(_SWITCH_S)
    # NOTE: by default making a config set of 3,000 winners brings about a collection that looks at all of
    # them and holds up every request for 20 to 140 ms.
    gc.set_threshold(*_COLLECT_AFTER)


def share_arena() -> None:
    """Let all threads allocate from one arena.

    By default glibc has up to eight for each core, and each keeps the pages of the largest answer that a
    thread made in it.
    """
    with contextlib.suppress(AttributeError):  # a C library without arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    most = connections.most_connections(settings.max_connections)
    return uvicorn.Config(
        app,
        http=connections.Connections(most),  # type: ignore[arg-type]  # it is called like a class
        ws="none",
        backlog=connections.BACKLOG,
        proxy_headers=False,  # NOTE: any process of this machine could name any address in them
        log_config=None,
        access_log=False,
        timeout_keep_alive=connections.IDLE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )


def _without_force(record: logging.LogRecord) -> bool:
    """Take from uvicorn's lines that another Ctrl-C ends it at once: :meth:`_Server.handle_exit`."""
    record.msg = str(record.msg).removesuffix(" (CTRL+C to force quit)")
    return True


def _settings(**options: Any) -> Settings:
    return Settings(**{name: value for name, value in options.items() if value is not None})


def _app(settings: Settings) -> FastAPI:
    try:
        return create_app(settings)
    except Exposed as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # NOTE: asyncio turns off Nagle's algorithm, 40 ms an answer, only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        is_of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        option = "--host" if is_of_host else "--port"
        place = f"{settings.host}:{settings.port}"
        reason = f"cannot listen at {place}: {error.strerror}; choose another {option}"
        typer.echo(f"error: {reason}", err=True)
        raise typer.Exit(1) from error
    return listener


def _announcement(listener: socket.socket, engine: Engine) -> dict[str, Any]:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return {"url": url, "devices": list(engine.queues)}
