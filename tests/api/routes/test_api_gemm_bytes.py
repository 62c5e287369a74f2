"""GEMMs from raw bodies and from shared memory: the same products, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from api_server import Server, finish, start

from tilewright import AsyncClient, Client
from tilewright.errors import InvalidProblem, ServiceError, ServiceUnreachable
from tilewright.http.shared_memory import Segments, empty, location, make
from tilewright.http.tensors import MEDIA_TYPE

RAW = {"Content-Type": "application/octet-stream"}
SAFETENSORS = {"Content-Type": MEDIA_TYPE}
SHAPE = {"m": 7, "n": 5, "k": 11, "dtype": "float64"}


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(
        tmp_path_factory.mktemp("sharing"), shared_memory=1, max_body_bytes=2**20, max_buffer_bytes=2**23
    )
    yield running
    finish(running)


@pytest.fixture(scope="module")
def here(sharing: Server) -> Iterator[Client]:
    with Client(sharing.url, timeout=60.0) as connected:
        yield connected


def draw(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape)


def segments() -> set[int]:
    """The inodes of the segments that this process has."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:tilewright-segment" in os.readlink(fd):
                found.add(fd.stat().st_ino)
    return found


def test_a_raw_body_and_answer(http: httpx2.Client) -> None:
    a, b, c, bias = draw(2, 7, 11), draw(2, 11, 5), draw(2, 7, 5), draw(5)
    query = SHAPE | {"batch": 2, "has_c": True, "has_bias": True, "alpha": 1.5, "beta": -0.5}
    body = b"".join(operand.tobytes() for operand in (a, b, c, bias))
    answer = http.post("/gemm", params=query, content=body, headers=RAW)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    d = np.frombuffer(answer.content).reshape(2, 7, 5)
    np.testing.assert_allclose(d, 1.5 * (a @ b) - 0.5 * c + bias, atol=1e-12, rtol=0)
    assert answer.headers["tilewright-ran"]
    parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert set(parts) == {"body", "lookup", "wait", "map", "upload", "bind", "launch", "kernel", "download"}
    assert all(float(milliseconds) >= 0 for milliseconds in parts.values())


@pytest.mark.parametrize("change", [{"m": None}, {"dtype": None}, {"k": 12}, {"has_bias": True}])
def test_a_raw_body_that_does_not_fit(http: httpx2.Client, change: dict[str, object]) -> None:
    query = {name: value for name, value in (SHAPE | change).items() if value is not None}
    answer = http.post("/gemm", params=query, content=bytes(8 * (77 + 55)), headers=RAW)
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:tilewright:problem:invalid-problem"


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


A = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 7,
        safetensors({}, length=2**63),
        safetensors({}, length=3),
        safetensors(b"{"),
        safetensors(b"[" * 5000),
        safetensors([]),
        safetensors({"a": 1}),
        safetensors({"a": A}),
        safetensors({"a": A, "b": A}, bytes(16)),
        safetensors({"a": A, "b": A | {"data_offsets": [16, 32]}}, bytes(33)),
        safetensors({"a": A, "b": A | {"data_offsets": [32, 16]}}, bytes(32)),
        safetensors({"a": A, "b": A | {"data_offsets": [20, 36]}}, bytes(36)),
        safetensors({"a": A | {"shape": [2**40, 2**40]}}, bytes(16)),
        safetensors({"a": A | {"shape": [-2, -2]}}, bytes(16)),
        safetensors({"a": A | {"shape": [2.0, 2]}}, bytes(16)),
        safetensors({"a": A | {"dtype": "F16"}}, bytes(16)),
        safetensors({"a": A | {"dtype": "I64"}}, bytes(16)),
        safetensors({"a": A | {"shape": [True, 4]}}, bytes(16)),
        safetensors({"\ud800": A}, bytes(16)),
        safetensors({"a": A | {"\ud800": 1}}, bytes(16)),
        safetensors({"a": A | {"dtype": "\ud800"}}, bytes(16)),
        safetensors({"x" * 10_000: A | {"data_offsets": [1, 17]}}, bytes(17)),
        safetensors({"x" * 10_000: 1}),
    ],
)
def test_damaged_safetensors_are_refused(http: httpx2.Client, body: bytes) -> None:
    answer = http.post("/gemm", content=body, headers=SAFETENSORS)
    assert answer.status_code == 422, answer.text
    assert len(answer.content) < 1000
    assert answer.json()["type"] == "urn:tilewright:problem:invalid-problem"


def test_shared_memory_gives_the_same_product(sharing: Server, here: Client) -> None:
    a, b, c, bias = draw(3, 7, 11), draw(3, 5, 11), draw(3, 7, 5), draw(5)
    answer = here.gemm(a, b, c, bias, alpha=2.0, beta=0.5, transpose_b=True, shared=True)
    np.testing.assert_allclose(answer.d, 2 * (a @ b.swapaxes(1, 2)) + 0.5 * c + bias, atol=1e-12, rtol=0)
    assert answer.kernel_us > 0
    assert {"wait", "kernel", "download"} <= answer.timing.keys()
    large, before = draw(600, 600), segments()
    with Client(sharing.url, timeout=60.0) as client:
        product = client.gemm(large, large, shared=True).d
        kept = segments()
        assert (client.gemm(large, -large, shared=True).d == -product).all()
        assert segments() == kept  # two segments, of the operands and of the result, serve again
        assert len(kept - before) == 2
    np.testing.assert_allclose(product, large @ large, atol=1e-10, rtol=0)
    assert segments() == before


def test_operands_made_in_shared_memory_are_not_copied(sharing: Server) -> None:
    before = segments()
    with Client(sharing.url, timeout=60.0) as client:
        a, out = client.shared_empty((6, 7, 11), "f8"), client.shared_empty((3, 7, 5), "f8")
        a[...] = draw(6, 7, 11)
        assert len(segments() - before) == 2
        b = draw(3, 11, 5)
        answer = client.gemm(a[3:], b, shared=True, out=out)
        assert answer.d is out
        assert len(segments() - before) == 3  # and what was copied: b alone
        np.testing.assert_allclose(out, a[3:] @ b, atol=1e-12, rtol=0)
        fixed = out.view()
        fixed.flags.writeable = False
        for wrong in (out[:2], out.astype("f4"), draw(3, 7, 5), np.swapaxes(out, 1, 2), fixed):
            with pytest.raises(InvalidProblem, match="shared_empty"):
                client.gemm(a[3:], b, shared=True, out=wrong)
        with pytest.raises(ServiceError, match="a segment of its own"):
            client.gemm(a[:3], draw(3, 11, 11), shared=True, out=a[3:])
        with pytest.raises(InvalidProblem, match="shared=True"):
            client.gemm(a[3:], b, out=out)
        row = out[0]
        del out, answer, wrong, fixed
        np.testing.assert_allclose(row, a[3] @ b[0], atol=1e-12, rtol=0)  # a view keeps it
        del row, a
    assert segments() == before


def test_the_asynchronous_client_shares_too(sharing: Server) -> None:
    async def run() -> Any:
        async with AsyncClient(sharing.url, timeout=60.0) as client:
            return await client.gemm(draw(4, 4), draw(4, 4), shared=True)

    np.testing.assert_allclose(asyncio.run(run()).d, draw(4, 4) @ draw(4, 4), atol=1e-12, rtol=0)


def test_what_cannot_be_shared_leaves_no_segment(server: Server) -> None:
    before = segments()
    with Client(server.url, timeout=60.0) as client:
        with pytest.raises(InvalidProblem, match="b must be float64"):
            client.gemm(draw(4, 4), draw(2, 8), shared=True)
        with pytest.raises(InvalidProblem, match="matrices"):
            client.gemm(draw(4), draw(4), shared=True)
        assert segments() == before
        with pytest.raises(ServiceError) as refused:
            client.gemm(draw(4, 4), draw(4, 4), shared=True)
    assert (refused.value.status, "TILEWRIGHT_SHARED_MEMORY" in str(refused.value)) == (403, True)
    del refused  # its frames hold the memory
    assert segments() == before
    with Client("http://127.0.0.1:1") as nowhere:
        with pytest.raises(ServiceUnreachable):
            nowhere.gemm(draw(4, 4), draw(4, 4), shared=True)
        assert segments() == before  # nothing is kept that somebody may still write to


def test_too_little_memory_is_an_error_and_no_crash() -> None:
    before = segments()
    with pytest.raises(OSError, match=r"Cannot allocate memory.*smaller operands"):
        make(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert segments() == before


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ServiceError(422, {}), True),
        (ServiceError(503, {"type": "urn:tilewright:problem:device-busy"}), True),
        (ServiceError(503, {"type": "urn:tilewright:problem:device-failed"}), False),
        (ServiceError(500, {}), False),
        (ServiceUnreachable("no answer"), False),
    ],
)
def test_a_segment_that_the_device_may_still_write_to_is_not_lent_again(error: Exception, kept: bool) -> None:
    before, lender = segments(), Segments()
    with pytest.raises(type(error)), lender.lend(100):
        raise error
    assert len(segments() - before) == int(kept)
    lender.close()
    assert segments() == before


def test_a_file_that_took_the_descriptor_of_a_segment_is_left_alone(tmp_path: Path) -> None:
    kept, array = Segments(), empty((4,), "f8")
    there = location(array)
    assert there is not None
    with kept.lend(100) as segment:
        pass
    with open(tmp_path / "file", "wb") as file:
        taken = [segment.fd, there["segment"]["fd"]]
        for fd in taken:
            os.dup2(file.fileno(), fd)
        assert location(array) is None
        with kept.lend(100) as other:
            assert other.token != segment.token
        del array
        kept.close()
        for fd in taken:
            assert os.path.sameopenfile(fd, file.fileno())
            os.close(fd)


def test_an_idle_service_lets_go_of_an_array_that_was_given_up(sharing: Server) -> None:
    def held(inode: int) -> bool:
        maps = [path for path in Path("/proc").glob("[0-9]*/maps") if int(path.parts[2]) != os.getpid()]
        return any(re.search(rf" {inode} +/memfd:", text_of(path)) for path in maps)

    def text_of(path: Path) -> str:
        with contextlib.suppress(OSError):
            return path.read_text()
        return ""

    with Client(sharing.url, timeout=60.0) as client:
        out = client.shared_empty((4, 4), "f8")
        found = location(out)
        assert found is not None
        inode = os.stat(f"/proc/self/fd/{found['segment']['fd']}").st_ino
        client.gemm(draw(4, 4), draw(4, 4), shared=True, out=out)
        assert held(inode)
        del out
        until = time.monotonic() + 30.0
        while held(inode):
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_forked_child_leaves_the_segments_of_its_parent() -> None:
    before, kept = segments(), Segments()
    with kept.lend(100) as segment:
        array = empty((4,), "f8")
    child = os.fork()
    if child == 0:
        with kept.lend(100) as other:
            fresh = other.token != segment.token
        kept.close()
        del array
        os._exit(0 if fresh else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(segments() - before) == 2
    del array, segment
    kept.close()
    assert segments() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"a": {"segment": {"pid": 1, "fd": 2**31, "token": "0" * 32}}}, "less than or equal"),
        ({"a": {"segment": {"pid": 1, "fd": 0, "token": "../../etc/passwd"}}}, "32 lower-case"),
        ({"a": {"segment": "tilewright_link0001"}}, "must be a JSON object"),
        ({"m": "4"}, "valid integer"),
        ({"m": True}, "valid integer"),
        ({"alpha": "1"}, "valid number"),
        ({"beta": False}, "valid number"),
        ({"deterministic": "yes"}, "valid boolean"),
        ({"offset": 65}, "the segment has"),
        ({"offset": 63}, "greater than or equal"),
        ({"offset": 2**49}, "less than or equal"),
        ({"m": 2**20, "n": 2**20}, "make it larger"),
    ],
)
def test_segments_are_checked(sharing: Server, change: dict[str, Any], says: str) -> None:
    operand, result = make(128), make(128)
    body = {"m": 4, "n": 4, "k": 4, "dtype": "float64", "d": result.location()}
    a = operand.location(change.pop("offset", 64))
    body |= {"a": a, "b": operand.location(), **change}
    answer = httpx2.post(f"{sharing.url}/gemm/shared", json=body, timeout=30)
    for segment in (operand, result):
        segment.remove()
    assert answer.status_code == 422
    assert says in answer.text


def test_memory_is_given_back_after_requests_that_end_anyhow(sharing: Server, here: Client) -> None:
    fds = Path(f"/proc/{sharing.process.pid}/fd")
    here.gemm(draw(8, 8), draw(8, 8))

    def many() -> None:
        for _ in range(5):
            here.gemm(draw(64, 64), draw(64, 64))
            httpx2.post(f"{sharing.url}/gemm", content=b"x" * 1000, headers=SAFETENSORS)

    before = len(list(fds.iterdir()))
    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(fds.iterdir())) <= before + 12
    memory = [fd for fd in fds.iterdir() if fd.is_symlink() and "memfd:tilewright" in os.readlink(fd)]
    assert (
        sum(fd.stat().st_size for fd in memory) <= 2 * 2**21
    )  # a quarter of max_buffer_bytes, with two descriptors each
