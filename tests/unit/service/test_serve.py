"""``tilewright serve``: its threads share the memory that they free, and how signals stop it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from sweeps import every

from service.cli.serve import _Server, _without_force
from service.engine.base import Engine

ALLOCATE = """
import ctypes, threading
from service.cli.serve import share_arena
{first}
ready = threading.Barrier(4)

def allocate():
    ready.wait()
    kept = [bytearray(50_000) for _ in range(20)]
    ready.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.long
@pytest.mark.parametrize(("first", "shared"), every(2, [("share_arena()", True), ("", False)]))
def test_the_threads_of_a_service_share_one_arena(first: str, shared: bool) -> None:
    command = [sys.executable, "-c", ALLOCATE.format(first=first)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    assert (told.count("Arena ") == 1) is shared


class _Engine:
    def __init__(self) -> None:
        self.stops = 0

    def begin_stop(self) -> None:
        self.stops += 1


def test_more_signals_leave_the_application_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Where the user is in a hurry, or a supervisor repeats itself."""
    did, engine = list[str](), _Engine()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            loop.call_soon(server.handle_exit, number, None)
        yield
        server.handle_exit(signal.SIGINT, None)
        await asyncio.sleep(0)
        did.append("the end")

    config = uvicorn.Config(FastAPI(lifespan=lifespan), log_config=None)
    announced: dict[str, Any] = {"url": "", "devices": []}
    server = _Server(config, cast(Engine, engine), announced, as_json=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.run([listener])
    assert (did, engine.stops, server.signal) == (["the end"], 1, signal.SIGTERM)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_no_line_says_that_another_signal_ends_it_at_once() -> None:
    line = "Waiting for connections to close. (CTRL+C to force quit)"
    assert line in inspect.getsource(uvicorn.Server), "what uvicorn writes"
    record = logging.LogRecord("uvicorn.error", logging.INFO, "", 0, line, None, None)
    assert _without_force(record)
    assert record.getMessage() == "Waiting for connections to close."
