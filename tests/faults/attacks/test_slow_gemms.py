"""Callers of ``POST /gemm`` that send slowly and read nothing: an honest caller is answered all the while."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from api_server import Server, finish, opened_database, start

from tilewright.http.tensors import MEDIA_TYPE, from_array, pieces
from tuner.store.access import keys

MIB = 2**20
ANSWER_S = 3.0  # NOTE: others may be working on this machine
BUFFERS = 64 * MIB
CALLERS = 40
SECONDS = 13.0  # until peers that are too slow are cut and come again


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with little memory for bodies and results."""
    running = start(tmp_path_factory.mktemp("slow"), max_body_bytes=16 * MIB, max_buffer_bytes=BUFFERS)
    yield running
    finish(running)


def body_of(a: np.ndarray, b: np.ndarray) -> bytes:
    return b"".join(pieces({"a": from_array("a", a), "b": from_array("b", b)}))


SMALL = body_of(np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))
LARGE_ANSWER = body_of(np.ones((1536, 1), "f4"), np.ones((1, 1536), "f4"))  # 9 MiB


def key_of(server: Server) -> str:
    """A key of its own: without keys all callers of loopback are one."""
    with opened_database(server) as store, store.begin() as session:
        return keys.create(session, "caller", frozenset({"run"}))[1]


def connected(server: Server, length: int, key: str) -> socket.socket:
    """A connection of an attacker's that has sent the head of a request."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    address = urlsplit(server.url)
    found.connect((address.hostname, address.port))
    found.settimeout(1.0)
    head = f"POST /gemm HTTP/1.1\r\nHost: localhost\r\nContent-Type: {MEDIA_TYPE}\r\n"
    found.sendall(f"{head}Authorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n".encode())
    return found


def upload_slowly(server: Server, key: str, stopped: threading.Event) -> None:
    """Send 32 KiB/s of 16 MiB until the server ends it."""
    with contextlib.suppress(OSError), contextlib.closing(connected(server, 16 * MIB, key)) as found:
        while not stopped.wait(0.25) and not select.select([found], [], [], 0)[0]:
            found.sendall(bytes(8192))


def read_nothing(server: Server, key: str, stopped: threading.Event) -> None:
    """Ask for 9 MiB, and read nothing until the server ends it."""
    length = len(LARGE_ANSWER)
    with contextlib.suppress(OSError), contextlib.closing(connected(server, length, key)) as found:
        found.sendall(LARGE_ANSWER)
        poll = select.poll()
        poll.register(found, select.POLLRDHUP | select.POLLHUP)
        while not stopped.wait(0.25) and not poll.poll(0):
            pass


def shared_bytes(server: Server) -> int:
    """How much memory the server shares with its worker."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("RssShmem:"))
    return int(found.split()[1]) * 1024


@pytest.mark.long
def test_slow_callers_keep_no_honest_one_waiting(server: Server) -> None:
    stopped, attacks = threading.Event(), (upload_slowly, read_nothing)
    attacker, own = key_of(server), {"Content-Type": MEDIA_TYPE, "Authorization": f"Bearer {key_of(server)}"}

    def again(attack: Callable[[Server, str, threading.Event], None]) -> None:
        while not stopped.is_set():
            attack(server, attacker, stopped)

    attackers = [threading.Thread(target=again, args=(attacks[i % 2],)) for i in range(CALLERS)]
    for one in attackers:
        one.start()
    slowest, most, until = 0.0, 0, time.monotonic() + SECONDS
    try:
        with httpx2.Client(base_url=server.url, headers=own, timeout=30) as honest:
            while time.monotonic() < until:
                started = time.monotonic()
                answer = honest.post("/gemm", content=SMALL)
                assert answer.status_code == 200, answer.text
                slowest = max(slowest, time.monotonic() - started)
                most = max(most, shared_bytes(server))
                time.sleep(0.25)
    finally:
        stopped.set()
        for one in attackers:
            one.join()
    assert slowest < ANSWER_S
    assert most <= BUFFERS
    assert "Traceback" not in server.log()


def test_answers_that_are_not_read_take_half_of_the_memory_at_most(server: Server) -> None:
    answers = []
    with contextlib.ExitStack() as opened:
        # NOTE: the server may not have seen yet that the attacker of the tests before is gone.
        another = key_of(server)
        sockets = [
            opened.enter_context(contextlib.closing(connected(server, len(LARGE_ANSWER), another)))
            for _ in range(12)
        ]
        for one in sockets:
            one.settimeout(30.0)  # NOTE: others may be working on this machine
            one.sendall(LARGE_ANSWER)
        answers = [one.recv(1024) for one in sockets]
    refused = [one for one in answers if one.startswith(b"HTTP/1.1 429")]
    assert len(answers) - len(refused) in (2, 3)
    assert all(b"retry-after" in one.lower() for one in refused)
