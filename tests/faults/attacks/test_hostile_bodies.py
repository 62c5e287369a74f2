"""Small bodies that would become large: compressed ones and nested ones are refused and take no memory."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import httpx2
import pytest
from api_server import Server, finish, start

from tilewright.errors import InvalidProblem
from tilewright.wire import safetensors

MOST_GROWTH = 50 * 2**20
UNPACKED = 60 * 2**20  # NOTE: 60 KiB compressed, so that it is under the limit of a JSON body
DEPTH = 10_000
TIMES = 16
PROBLEM = "application/problem+json"
PATHS = ("/tune", "/best-config/lookup", "/misses")
BODIES = {
    "gzip bomb": lambda: gzip.compress(b'{"m": "' + b" " * UNPACKED + b'"}'),
    "gzip bomb in a gzip bomb": lambda: gzip.compress(gzip.compress(b" " * 4 * UNPACKED)),
    "deep lists": lambda: b"[" * DEPTH + b"]" * DEPTH,
    "deep lists as a field": lambda: b'{"m": ' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    "deep objects as a field": lambda: b'{"problems": [' + b'{"m":' * DEPTH + b"1" + b"}" * DEPTH + b"]}",
    "deep lists without an end": lambda: b"[" * 6 * DEPTH,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("server"))
    yield running
    finish(running)


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60.0) as plain:
        yield plain


@pytest.fixture(scope="module", params=BODIES)
def body(request: pytest.FixtureRequest) -> bytes:
    return BODIES[request.param]()


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_would_become_large_is_refused(
    server: Server, http: httpx2.Client, path: str, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    assert len(body) < 2**16
    assert http.post(path, content=b"{}", headers=headers).status_code == 422
    before = server.resident_bytes()
    with ThreadPoolExecutor(8) as pool:
        packed = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f\x8b") else {}
        post = partial(http.post, path, content=body, headers=headers | packed)
        answers = [sent.result() for sent in [pool.submit(post) for _ in range(TIMES)]]
    grown = server.resident_bytes("VmHWM:") - before
    for answer in answers:
        assert 400 <= answer.status_code < 500
        assert answer.headers["content-type"] == PROBLEM
        assert answer.json()["status"] == answer.status_code
        assert len(answer.content) < 4096
        # NOTE: a Python whose stack is deep enough reads the text; then its fields are refused (422).
        told = "use none for requests" if packed else "send one JSON object"
        assert answer.status_code == 422 or told in answer.json()["detail"]
    assert grown < MOST_GROWTH
    assert http.get("/health/live").status_code == 200
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("packed", ["gzip", "x-gzip", "deflate", "br", "zstd", "gzip, gzip", "unknown"])
@pytest.mark.parametrize("path", ["/tune", "/trials", "/gemm", "/view/jobs"])
def test_a_packed_body_is_refused_by_its_name(http: httpx2.Client, path: str, packed: str) -> None:
    answer = http.post(path, content=gzip.compress(b"{}"), headers={"Content-Encoding": packed})
    assert answer.status_code == 415
    assert "use none for requests" in answer.json()["detail"]


def test_a_body_of_two_lengths_hides_no_second_request(server: Server) -> None:
    """A proxy before the service may believe the other length."""
    address = urlsplit(server.url)
    head = (
        f"POST /best-config/lookup HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    )
    body = f"0\r\n\r\nGET /health/live HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
    lengths = f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=10.0) as connection:
        connection.sendall((head + lengths + body).encode())
        answers = b"".join(iter(partial(connection.recv, 65536), b""))
    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b"use one" in answers


@pytest.mark.parametrize("header", ["a name twice", "UTF-16"])
def test_a_header_that_others_may_read_otherwise_is_refused(header: str) -> None:
    place = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    text = b'{"a":%b}' % place
    told = b'{"a":%b,"a":%b}' % (place, place) if header == "a name twice" else text.decode().encode("utf-16")
    for content, refused in ((text, False), (told, True)):
        file = len(content).to_bytes(8, "little") + content + bytes(4)

        def read(offset: int, size: int, file: bytes = file) -> bytes:
            return file[offset : offset + size]

        if refused:
            with pytest.raises(InvalidProblem, match="not a safetensors file"):
                safetensors.places(read, len(file))
        else:
            assert safetensors.places(read, len(file))["a"].size == 4
