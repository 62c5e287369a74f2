"""Peers that open connections and send or read nothing: everyone else is served, and nothing is kept."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from api_server import Server, finish, start

FILES = 1024
FLOOD = 1100
SLACK_S = 5.0  # NOTE: others may be working on this machine
PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that may open 1024 files, as by default on most systems."""
    running = start(tmp_path_factory.mktemp("few-files"), "prlimit", f"--nofile={FILES}")
    yield running
    finish(running)


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Let this process open more files than the server may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * FILES)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(opened: contextlib.ExitStack, server: Server, sent: bytes) -> socket.socket:
    address = urlsplit(server.url)
    found = opened.enter_context(socket.create_connection((address.hostname, address.port), timeout=20))
    found.sendall(sent)
    return found


def connections_of(server: Server) -> int:
    """How many connections to its port the server holds; its database and its workers' pipes do not count."""
    folder = Path(f"/proc/{server.process.pid}")
    held = set()
    for one in os.listdir(folder / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(folder / "fd" / one))
    port = f":{urlsplit(server.url).port:04X}"
    rows = [line.split() for line in (folder / "net" / "tcp").read_text().splitlines()[1:]]
    connected = [row for row in rows if row[1].endswith(port) and not row[2].endswith(":0000")]
    return sum(f"socket:[{row[9]}]" in held for row in connected)


def ended(sockets: list[socket.socket]) -> int:
    """How many of them the server has closed."""
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLIN)
    return len(poll.poll(0))


def answered_s(server: Server, path: str = "/health/ready") -> float:
    started = time.monotonic()
    assert httpx2.get(server.url + path, timeout=60).status_code == 200
    return time.monotonic() - started


@pytest.mark.long
def test_a_flood_of_half_sent_headers_keeps_nobody_out(server: Server) -> None:
    log, cpu_s = server.folder / "log", server.cpu_s()
    size, started = log.stat().st_size, time.monotonic()
    with contextlib.ExitStack() as opened:
        sockets = [
            connected(opened, server, b"GET /devices HTTP/1.1\r\nHost: localhost\r\nX-Half: ")
            for _ in range(FLOOD)
        ]
        assert answered_s(server) < SLACK_S
        begun, cpu_before = time.monotonic(), server.cpu_s()
        slowest = max(answered_s(server, "/devices") for _ in range(20))
        assert slowest < SLACK_S
        time.sleep(1.0)
        assert (server.cpu_s() - cpu_before) / (time.monotonic() - begun) < 0.8
        while ended(sockets) < FLOOD:
            assert time.monotonic() - started < PATIENCE_S + 2 * SLACK_S, "half a header is waited for"
            time.sleep(0.1)
    assert log.stat().st_size - size < 100_000
    assert server.cpu_s() - cpu_s < 10.0
    assert "Traceback" not in server.log()


def kept_idle_s(idle: socket.socket) -> float:
    """How long a connection is kept after its answer, and then closed in order."""
    started, answer = time.monotonic(), b""
    while got := idle.recv(4096):  # the end, and no reset
        answer += got
    assert answer.startswith(b"HTTP/1.1 200")
    return time.monotonic() - started


@pytest.mark.long
def test_peers_that_are_too_slow_are_cut_and_an_idle_connection_outlives_those_of_clients(
    server: Server,
) -> None:
    """httpx2 and others send over one that was idle for 5 s; what comes while it is closed is lost."""
    get = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n"
    before = connections_of(server)
    with contextlib.ExitStack() as opened:
        idle = connected(opened, server, get % b"health/live" + b"\r\n")
        idle_s = opened.enter_context(ThreadPoolExecutor(1)).submit(kept_idle_s, idle)
        kept = opened.enter_context(httpx2.Client(base_url=server.url, timeout=60))
        slow = {
            "no header": connected(opened, server, b""),
            "a header by bytes": connected(opened, server, get % b"devices"),
            "a body that nobody wants": connected(
                opened, server, get % b"health/live" + b"Content-Length: 60000\r\n\r\n"
            ),
        }
        connected(opened, server, (get % b"openapi.json" + b"\r\n") * 500)  # it reads no answer
        started = time.monotonic()
        answer = b""
        while not answer.endswith(b"}"):
            answer += (got := slow["a body that nobody wants"].recv(4096))
            assert got, answer
        assert answer.startswith(b"HTTP/1.1 200")
        while ended(list(slow.values())) < len(slow) or connections_of(server) > before + 1:
            assert time.monotonic() - started < 3 * PATIENCE_S, (
                ended(list(slow.values())),
                connections_of(server),
            )
            for one in slow.values():
                with contextlib.suppress(OSError):
                    one.sendall(b"x" if one is not slow["no header"] else b"")
            assert kept.get("/health/live").status_code == 200
            time.sleep(0.25)
        assert 6.0 < idle_s.result() < PATIENCE_S + SLACK_S
