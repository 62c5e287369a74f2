"""A service that lies: its answers do not end, or are bombs. A client reads what the message can be."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from tilewright import AsyncClient, Client, GemmProblem
from tilewright.errors import ServiceUnreachable
from tilewright.http.calls import KERNEL_BYTES, MANY_BYTES, ONE_BYTES

DIGEST = "sha256:" + "0" * 64
PROBLEM = GemmProblem(16, 16, 16, "float32")
IN_FLIGHT = 16 << 20  # what the buffers of both ends may hold
PIECE = b" " * (1 << 18)
BOMB = gzip.compress(bytes(1 << 24))

# What asks, and the most bytes of an answer that it may read.
ASKING: dict[str, tuple[Callable[[Any], Any], int]] = {
    "job": (lambda tw: tw.job("a" * 32), ONE_BYTES),
    "tune": (lambda tw: tw.tune(PROBLEM, wait=False), ONE_BYTES),
    "best_config": (lambda tw: tw.best_config(PROBLEM, arch="sm_90"), ONE_BYTES),
    "gemm": (lambda tw: tw.gemm(np.ones((4, 4), "float32"), np.ones((4, 4), "float32")), ONE_BYTES),
    "ready": (lambda tw: tw.ready(), ONE_BYTES),
    "wait": (lambda tw: tw.wait("a" * 32), ONE_BYTES),
    "trials": (lambda tw: tw.trials("a" * 32), MANY_BYTES),
    "jobs": (lambda tw: tw.jobs(), MANY_BYTES),
    "lookup_many": (lambda tw: tw.lookup_many([PROBLEM], arch="sm_90"), MANY_BYTES),
    "current_set": (lambda tw: tw.current_set("sm_90-132sm"), MANY_BYTES),
    "artifact": (lambda tw: tw.artifact("0" * 64), KERNEL_BYTES),
    "artifacts": (lambda tw: tw.artifacts(DIGEST, ["0" * 64]), MANY_BYTES),
}


class Liar(BaseHTTPRequestHandler):
    """Answers everything with 200 and a body that goes on until the client hangs up."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if self.server.bomb:
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(BOMB)))
            self.end_headers()
            self.send(BOMB)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while self.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE)):
            pass

    do_POST = do_GET

    def send(self, content: bytes) -> bool:
        try:
            self.wfile.write(content)
        except OSError:
            self.close_connection = True
            return False
        self.server.sent += len(content)
        return True

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Service(ThreadingHTTPServer):
    """Counts the bytes that it got rid of."""

    daemon_threads = True
    sent = 0
    bomb = False


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(("127.0.0.1", 0), Liar) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url(service: Service) -> str:
    return f"http://127.0.0.1:{service.server_port}"


async def ask_async(service: Service, ask: Callable[[Any], Any]) -> None:
    async with AsyncClient(url(service), timeout=10.0) as client:
        await ask(client)


def ask_and_wait(service: Service, ask: Callable[[Any], Any]) -> None:
    with Client(url(service), timeout=10.0) as client:
        ask(client)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.http.events._PATIENCE_S", 0.0)


@pytest.mark.parametrize(
    ("name", "asynchronous"),
    # Both clients read as far as the call that they share says: of the other, one call of each length.
    [*((name, False) for name in ASKING), *((name, True) for name in ("job", "trials", "artifact"))],
)
def test_an_endless_answer_is_read_as_far_as_one_may_go(
    service: Service, name: str, asynchronous: bool
) -> None:
    ask, most = ASKING[name]
    with pytest.raises(ServiceUnreachable):
        asyncio.run(ask_async(service, ask)) if asynchronous else ask_and_wait(service, ask)
    assert service.sent <= most + IN_FLIGHT


@pytest.mark.parametrize("asynchronous", [False, True], ids=["waits", "awaits"])
def test_what_is_compressed_unasked_is_not_unpacked(service: Service, asynchronous: bool) -> None:
    service.bomb = True
    ask, _ = ASKING["trials"]
    with pytest.raises(ServiceUnreachable, match="compresses its answers"):
        asyncio.run(ask_async(service, ask)) if asynchronous else ask_and_wait(service, ask)
