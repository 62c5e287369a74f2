"""Large bodies without copies: early refusals, late answers, and connections that are kept."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from tilewright import calls, requests
from tilewright.direct import Direct, reaches
from tilewright.errors import ServiceError, ServiceUnreachable
from tilewright.tensors import from_array, pieces

PRODUCT = b"".join(pieces({"d": from_array("d", np.arange(6.0).reshape(2, 3))}))
TOLD = {
    "Tilewright-Ran": "numpy",
    "Tilewright-Kernel-Us": "1.5",
    "Server-Timing": "body;dur=2.5, wait;dur=0.5",
}


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's ``mode`` says; notes the clients' addresses and bodies."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        mode = self.server.mode
        if mode == "early":
            self.close_connection = True
            self._send(413, b'{"type": "x", "status": 413, "title": "Too large", "detail": "less, please"}')
            self.connection.shutdown(socket.SHUT_RD)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.client_address[1], self.path, self.headers["Authorization"], len(body)))
        if mode == "late":
            time.sleep(0.6)
        if mode == "never":
            self.server.ended.wait(10)
            self.close_connection = True
            return
        self._send(200, PRODUCT, short=8 if mode == "short" else 0)
        if mode in ("short", "once"):
            self.close_connection = True

    def _send(self, status: int, content: bytes, short: int = 0) -> None:
        self.send_response(status)
        for name, value in {**TOLD, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: len(content) - short])

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.mode, running.seen, running.ended = "ok", [], threading.Event()
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    yield running
    running.ended.set()
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def direct(server: Any) -> Iterator[Direct]:
    made = Direct(f"http://127.0.0.1:{server.server_port}/at/", 0.4, {"Authorization": "Bearer k"})
    yield made
    made.close()


def call(answer_s: float = 0.0, rows: int = 4) -> calls.Call[calls.GemmAnswer]:
    made = requests.gemm({"a": np.ones((rows, 1024), "f4"), "b": np.ones((1024, 2), "f4")}, {"alpha": 2.0})
    return calls.Call(made.method, made.path, made.parse, made.params, made.content, made.headers, answer_s)


def test_one_connection_serves_one_call_after_the_other(server: Any, direct: Direct) -> None:
    answers = [direct.send(call()) for _ in range(3)]
    assert all((answer.d == np.arange(6.0).reshape(2, 3)).all() for answer in answers)
    assert answers[0].timing == {"body": 2.5, "wait": 0.5}
    assert (answers[0].ran, answers[0].kernel_us, answers[0].match) == ("numpy", 1.5, "")
    assert len({seen[0] for seen in server.seen}) == 1
    size = sum(map(len, call().content or ()))
    assert server.seen[0][1:] == ("/at/gemm?layout=nn&alpha=2.0", "Bearer k", size)


def test_a_connection_that_ended_meanwhile_is_replaced(server: Any, direct: Direct) -> None:
    server.mode = "once"
    for _ in range(3):
        direct.send(call())
        time.sleep(0.05)
    assert len({seen[0] for seen in server.seen}) == 3


def test_a_refusal_before_the_body_has_gone_is_read(server: Any, direct: Direct) -> None:
    server.mode = "early"
    with pytest.raises(ServiceError, match="less, please"):
        direct.send(call(rows=4096))
    server.mode = "ok"
    assert direct.send(call()).ran == "numpy"


def test_an_answer_may_take_longer_than_other_steps(server: Any, direct: Direct) -> None:
    server.mode = "late"
    assert direct.send(call(answer_s=5.0)).ran == "numpy"
    with pytest.raises(ServiceUnreachable, match="tilewright serve"):
        direct.send(call())


@pytest.mark.parametrize("mode", ["never", "short"])
def test_what_does_not_answer_is_told(server: Any, direct: Direct, mode: str) -> None:
    server.mode = mode
    with pytest.raises(ServiceUnreachable, match="no answer from http"):
        direct.send(call())


def test_a_gemm_waits_longer_than_the_service_does() -> None:
    """10 s for the device, 30 s for the kernel, by the service's own settings."""
    assert requests.gemm({"a": np.eye(2), "b": np.eye(2)}, {}).answer_s > 40


def test_what_lies_between_is_left_to_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert reaches("http://gpu:8080")
    assert not reaches("https://gpu")
    assert not reaches("http://me:secret@gpu")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert not reaches("http://gpu:8080")
    monkeypatch.setenv("no_proxy", "gpu")
    assert reaches("http://gpu:8080")
