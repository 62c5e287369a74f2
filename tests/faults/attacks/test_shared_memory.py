"""Memory of others: callers of ``POST /gemm/shared`` who name what is not theirs, or pull it away meanwhile;
and what answers tell of the machine when something dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from api_server import Server, children, finish, start

from service.gemm import operands
from tilewright.http.shared_memory import Segment, make
from tilewright.wire.gemm import SharedSegment
from tuner.workers import shared_memory
from tuner.workers.shared_memory import Pages

N = 8
WORKER = b"tuner.workers.device_worker"
SECRET = np.full((N, N), 7.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("sharing"), shared_memory=1)
    yield running
    finish(running)


@pytest.fixture
def victim() -> Iterator[Segment]:
    """A segment of another process, as an attacker sees it: its process and descriptor are no secret."""
    segment = make(SECRET.nbytes)
    segment.array(SECRET.shape, "f8")[...] = SECRET
    yield segment
    assert (segment.array(SECRET.shape, "f8") == SECRET).all()
    segment.remove()


@pytest.fixture
def own() -> Iterator[Segment]:
    """A segment of the attacker."""
    segment = make(2 * SECRET.nbytes)
    segment.array((2, N, N), "f8")[...] = np.eye(N)
    yield segment
    segment.remove()


def post(server: Server, a: dict[str, Any], d: dict[str, Any]) -> httpx2.Response:
    body = {"m": N, "n": N, "k": N, "dtype": "float64", "layout": "nn", "a": a, "b": a, "d": d}
    return httpx2.post(f"{server.url}/gemm/shared", json=body, timeout=30)


def named(fd: int, token: str = "0" * 32) -> dict[str, Any]:
    return {"segment": {"pid": os.getpid(), "fd": fd, "token": token}}


def test_a_segment_is_neither_written_nor_read_without_its_token(
    server: Server, victim: Segment, own: Segment
) -> None:
    for token in ("0" * 32, own.token, victim.token[:-1] + ("1" if victim.token[-1] == "0" else "0")):
        stolen = named(victim.fd, token)
        for answer in (post(server, own.location(), stolen), post(server, stolen, own.location())):
            assert (answer.status_code, "has no memory of that token" in answer.text) == (422, True)
    assert (own.array((N, N), "f8") == np.eye(N)).all()
    assert post(server, own.location(), victim.location()).status_code == 200
    victim.array(SECRET.shape, "f8")[...] = SECRET


def test_a_token_does_not_stand_for_memory_of_another_user(server: Server, own: Segment) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make memory as another user")
    os.seteuid(65534)
    try:
        foreign = make(SECRET.nbytes)
    finally:
        os.seteuid(0)
    assert post(server, own.location(), foreign.location()).status_code == 422
    assert not foreign.array(SECRET.shape, "f8").any()
    foreign.remove()


def test_memory_that_can_be_shrunk_is_refused_and_sealed_memory_cannot_be(
    server: Server, own: Segment
) -> None:
    (worker,) = children(server.process.pid, WORKER)
    token = "5" * 32
    soft = os.memfd_create("soft", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(soft, 2**20)
    os.pwrite(soft, token.encode(), 0)
    assert "F_SEAL_SHRINK" in post(server, named(soft, token), own.location(64 + SECRET.nbytes)).text
    os.close(soft)
    other, stop = make(SECRET.nbytes), threading.Event()
    refused = []

    def shrink() -> None:
        while not stop.is_set():
            with contextlib.suppress(PermissionError):
                os.ftruncate(own.fd, 0)
                refused.append("shrunk")
            time.sleep(0.001)

    shrinking = threading.Thread(target=shrink)
    shrinking.start()
    for _ in range(20):
        assert post(server, own.location(), other.location()).status_code == 200
    stop.set()
    shrinking.join()
    assert not refused
    assert (other.array((N, N), "f8") == np.eye(N)).all()
    assert children(server.process.pid, WORKER) == [worker]
    other.remove()


def test_one_memory_by_two_names_overlaps(server: Server, own: Segment) -> None:
    twin = os.dup(own.fd)
    answer = post(server, own.location(), named(twin, own.token) | {"offset": 64 + N})
    os.close(twin)
    assert (answer.status_code, "a segment of its own" in answer.text) == (422, True)
    assert (own.array((2, N, N), "f8") == np.eye(N)).all()


def test_files_pipes_and_sockets_are_left_alone(server: Server, own: Segment, tmp_path: Path) -> None:
    token, file = "6" * 32, tmp_path / "file"
    file.write_bytes(token.encode() + bytes(4096))
    with open(file, "r+b") as opened, socket.socket() as connection:
        reader, writer = os.pipe()
        for fd in (opened.fileno(), connection.fileno(), reader, writer, 2**31 - 1):
            answer = post(server, own.location(), named(fd, token))
            assert (answer.status_code, "has no memory of that token" in answer.text) == (422, True)
        os.close(writer)
        assert os.read(reader, 1) == b""  # nobody else holds its other end
        os.close(reader)
    assert file.read_bytes() == token.encode() + bytes(4096)


def tells_of_this_machine(text: str) -> list[str]:
    return [word for word in ("Traceback", "Fatal Python", ".py", "/work", "/tmp", "/home") if word in text]


def await_request(worker: int) -> None:
    """Wait until a request lies in the pipe of a stopped worker, however busy the machine is: a worker that
    dies before it is replaced, and the request answered."""
    command = Path(f"/proc/{worker}/cmdline").read_text()
    fd = command.partition("--pipes=")[2].partition(",")[0]
    with open(f"/proc/{worker}/fd/{fd}", "rb", buffering=0) as pipe:
        while not any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
            time.sleep(0.01)


def test_a_death_in_a_request_tells_no_path(server: Server, own: Segment) -> None:
    (worker,) = children(server.process.pid, WORKER)
    other, answers = make(SECRET.nbytes), []
    os.kill(worker, signal.SIGSTOP)
    asking = threading.Thread(target=lambda: answers.append(post(server, own.location(), other.location())))
    asking.start()
    await_request(worker)
    os.kill(worker, signal.SIGABRT)
    os.kill(worker, signal.SIGCONT)
    asking.join()
    other.remove()
    (answer,) = answers
    assert (answer.status_code, "SIGABRT" in answer.text) == (503, True)
    assert not tells_of_this_machine(answer.text), answer.text
    assert "Fatal Python error" in server.log()


def test_buffers_of_the_service_are_no_memory_of_a_caller() -> None:
    """They start with what a caller sent, possibly a token, and hold what others send next."""
    token = "0123456789abcdef" * 2
    with Pages() as pages, contextlib.ExitStack() as held:
        pages.append(token.encode() + bytes(64))
        segment = SharedSegment(pid=os.getpid(), fd=pages._fd, token=token)
        assert operands._proven(segment, pages.region.path, held) is None


def test_more_seals_than_are_asked_for_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vm.memfd_noexec is set the kernel adds one against execution; one against writing is refused."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        for more, fits in ((0x20, True), (fcntl.F_SEAL_GROW, True), (0x8, False), (0x10, False)):
            monkeypatch.setattr(shared_memory.fcntl, "fcntl", lambda *_, more=more: seals | more)
            assert shared_memory.is_sealed(fd) is fits
    finally:
        os.close(fd)
