"""Requests that are not HTTP, repeat much, or come from every address of loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import httpx2
import pytest
from api_server import Server, finish, start

PROBLEM = {"dtype": "float32", "layout": "nn", "max_trials": 500}
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("hostile"), max_caller_queue=1)
    yield running
    finish(running)


def sent(server: Server, text: bytes) -> bytes:
    """The whole answer to these bytes."""
    address, answer = urlsplit(server.url), b""
    with closing(socket.create_connection((address.hostname, address.port), timeout=30)) as opened:
        opened.sendall(text)
        while part := opened.recv(65536):
            answer += part
    return answer


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"GET /jobs?limit=\xff HTTP/1.1\r\n" + HOST + b"\r\n", "illegal request line"),
        (b"GET /jobs HTTP/1.1\r\n" + HOST + HOST + b"\r\n", "Found multiple Host: headers"),
        (b"POST /tune HTTP/1.1\r\n" + HOST + b"Content-Length: +2\r\n\r\n{}", "bad Content-Length"),
        (b"POST /tune HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: x\r\n\r\n", "Transfer-Encoding"),
        (b"GET /jobs HTTP/1.1\r\n" + HOST + b"a: " + b"\x00" * 5000 + b"\r\n\r\n", "illegal header line"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "illegal request line"),
    ],
)
def test_what_is_not_http_has_a_problem_document_too(server: Server, text: bytes, says: str) -> None:
    head, _, body = sent(server, text).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    document = json.loads(body)
    assert status.startswith("HTTP/1.1 400 ")
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"] == document["request_id"]
    assert document["type"] == "urn:tilewright:problem:bad-request"
    assert says in document["detail"]
    assert len(body) < 1000
    assert document["request_id"] in server.log()
    assert says not in server.log(), "a header of the request may stand there"


def test_a_broken_body_of_a_head_request_is_no_fault_of_the_service(server: Server) -> None:
    answer = sent(server, b"HEAD /jobs HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"\r\n\r\n"), "no body"
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("path", [b"/nothing", b"/tune"])
def test_a_broken_body_beside_its_answer_is_no_fault_of_the_service(server: Server, path: bytes) -> None:
    chunked = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), timeout=30)) as opened:
        opened.sendall(b"POST " + path + b" HTTP/1.1\r\n" + HOST + chunked)
        if path == b"/nothing":
            assert opened.recv(65536).startswith(b"HTTP/1.1 404")
        opened.sendall(b"F" * 30 + b"\r\n{}")
        while opened.recv(65536):
            pass
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/"), ("POST", "/tune/")])
def test_a_long_path_is_not_repeated(server: Server, method: str, path: str) -> None:
    answer = httpx2.request(method, server.url + path + "x" * 60_000)
    assert (answer.status_code, answer.json()["instance"][:10]) == (404, (path + "x" * 10)[:10])
    too_large = httpx2.post(server.url + path + "x" * 60_000, content=b" " * 70_000)
    assert too_large.status_code == 413
    assert max(len(answer.content), len(too_large.content)) < 1500


def test_all_of_loopback_is_one_caller(server: Server) -> None:
    """A process chooses its address there, and would have a queue of its own at each."""
    answers = []
    for number, address in enumerate(("127.0.0.1", "127.0.0.2", "127.9.9.9")):
        with httpx2.Client(transport=httpx2.HTTPTransport(local_address=address), timeout=30) as one:
            for n in (1999, 2000):
                body = PROBLEM | {"m": 2000 + number, "n": n, "k": 2000}
                answers.append(one.post(f"{server.url}/tune", json=body))
    refused = [answer for answer in answers if answer.status_code == 429]
    mine = httpx2.delete(f"{server.url}/jobs?mine=true", timeout=30)
    assert mine.json()["jobs"] == len(answers) - len(refused) <= 2, "one at work and one that waits"
    told = refused[0].json()["detail"]
    assert ("TILEWRIGHT_MAX_CALLER_QUEUE" in told, "keys set" in told) == (True, False)
