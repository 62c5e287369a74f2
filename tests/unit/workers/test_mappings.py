"""Memory of GEMMs on request that stays mapped: seen through, grown, given up, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from service.errors import Kind, Refusal
from service.gemm.memory import GemmMemory
from tilewright.errors import InvalidProblem
from tuner.devices.host import HostDevice
from tuner.workers import shared_memory
from tuner.workers.shared_memory import Mappings, Pages, Region

SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Pinning(HostDevice):
    """Notes the sizes of what is pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[int] = []

    def pin(self, memory: Any) -> bool:
        self.pinned.append(memory.nbytes)
        return True

    def unpin(self, memory: Any) -> None:
        self.pinned.remove(memory.nbytes)


@pytest.fixture
def device() -> Pinning:
    return Pinning()


@pytest.fixture
def kept(device: Pinning) -> Iterator[Mappings]:
    before = len(os.listdir("/proc/self/fd"))
    made = Mappings(device)
    yield made
    mappings_end(made, device)
    assert len(os.listdir("/proc/self/fd")) == before


def array(kept: Mappings, region: Region) -> Any:
    return kept.arrays({"a": region})["a"]


def mappings_end(made: Mappings, device: Pinning) -> None:
    """Every file of these tests is given up at their end."""
    made.trim()
    assert device.pinned == []


@pytest.fixture
def sparse() -> Iterator[Region]:
    with Pages() as pages:
        yield pages.resize(64 * 2**20)


def taken(region: Region) -> int:
    return os.stat(region.path).st_blocks * 512


def test_of_a_sparse_file_nothing_is_taken_but_what_is_used(device: Pinning, sparse: Region) -> None:
    kept = Mappings(device)
    small = array(kept, sparse.part(16 * 2**20, 4))
    assert taken(sparse) <= 2**21
    used = {"a": sparse.part(0, 8), "b": sparse.part(40 * 2**20 + 4, 3 * 2**20), "d": sparse.part(8, 8)}
    arrays = kept.arrays(used)
    assert taken(sparse) <= 8 * 2**20
    assert device.pinned == [2**21, 2**21, 2**22]
    assert np.shares_memory(arrays["a"].base, arrays["d"])  # one mapping
    for name, value in zip("abd", b"xyz", strict=True):
        arrays[name][:] = value
    small[:] = ord("s")
    with open(sparse.path, "rb") as file:
        written = file.read()
    assert written[:16] == b"x" * 8 + b"z" * 8
    assert written[16 * 2**20 :][:5] == b"ssss\0"
    assert written[40 * 2**20 + 3 :][:2] == b"\0y"
    assert written.count(b"y") == 3 * 2**20
    kept.close()
    assert device.pinned == []


def test_what_is_mapped_grows_together_and_is_mapped_once(device: Pinning, sparse: Region) -> None:
    kept = Mappings(device)
    array(kept, sparse.part(0, 2**21))
    array(kept, sparse.part(2**22, 2**21))
    assert device.pinned == [2**21, 2**21]
    both = kept.arrays({"a": sparse.part(2**21, 1), "b": sparse.part(5 * 2**20, 1)})
    assert device.pinned == [3 * 2**21]
    assert array(kept, sparse.part(100, 1)).ctypes.data == both["a"].ctypes.data - 2**21 + 100
    assert device.pinned == [3 * 2**21]
    kept.close()


def test_pages_that_serve_again_are_mapped_once(kept: Mappings, device: Pinning) -> None:
    with Pages() as pages:
        for values in (b"first", b"second one"):
            pages.resize(0)
            pages.append(values)
            assert bytes(array(kept, pages.region)) == values
        assert bytes(array(kept, pages.region.part(7, 3))) == b"one"
        array(kept, pages.region)[:] = ord("x")
        assert pages.read(0, 100) == b"x" * 10
        assert device.pinned == [2**20]
        pages.append(bytes(3 * 2**20))
        assert array(kept, pages.region)[-1] == 0
        assert device.pinned == [pages.region.size]  # anew, as far as it is needed


def test_what_ends_too_early_is_refused(kept: Mappings) -> None:
    with Pages() as pages:
        whole = pages.resize(2**21)
        array(kept, whole)
        with pytest.raises(InvalidProblem, match="behind its memory's end"):
            array(kept, whole.part(2**20, 2**20 + 1))


@pytest.mark.parametrize("reused", [False, True])
def test_a_file_that_its_owner_closed_is_let_go(kept: Mappings, device: Pinning, reused: bool) -> None:
    pages = Pages()
    pages.append(b"abc")
    given = array(kept, pages.region)
    kept.trim()
    assert device.pinned == [2**20]
    closed = pages.region.path
    pages.close()
    with Pages() if reused else contextlib.nullcontext() as other:
        assert other is None or other.region.path == closed
        kept.trim()
        assert device.pinned == []
    assert bytes(given) == b"abc"


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SEAL, SEALED | fcntl.F_SEAL_WRITE])
def test_memory_that_may_shrink_or_cannot_be_written_is_not_mapped(kept: Mappings, seals: int) -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 8)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        path = f"/proc/self/fd/{fd}"
        with pytest.raises(InvalidProblem, match="sealed against shrinking"):
            array(kept, Region(path, path, 0, 8))
    finally:
        os.close(fd)


def test_the_end_lets_go_of_what_others_still_have(kept: Mappings, device: Pinning) -> None:
    with Pages() as pages:
        array(kept, pages.resize(8))
        assert device.pinned == [2**20]
        kept.close()
        assert device.pinned == []


def test_the_oldest_go_where_there_are_too_many(
    kept: Mappings, device: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_MOST_MAPPED", 2)
    with Pages() as first, Pages() as second, Pages() as third:
        for pages in (first, second, third, first):
            array(kept, pages.resize(8))[:] = 1
        kept.trim()
        assert len(device.pinned) == 2
        array(kept, first.region)
        assert len(device.pinned) == 2
        monkeypatch.setattr(shared_memory, "_MOST_BYTES", 2**20)
        kept.trim()
        assert len(device.pinned) == 1
        beyond = array(kept, second.resize(2**20 + 1))  # mapped for this time alone
        beyond[-1] = 7
        assert second.read(2**20, 1) == b"\7"
        assert len(device.pinned) == 1
        assert np.shares_memory(array(kept, first.region), array(kept, first.region))


@pytest.mark.parametrize(
    ("error", "lent_again"),
    [
        (InvalidProblem("no"), True),
        (Refusal(Kind.DEVICE_BUSY, "later"), True),
        (Refusal(Kind.DEVICE_FAILED, "its process cannot be killed"), False),
        (RuntimeError("unforeseen"), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_pages_that_a_device_may_still_write_to_are_not_lent_again(
    error: BaseException, lent_again: bool
) -> None:
    memory = memory_of(2**24)
    with pytest.raises(type(error)), memory.request("me", 0) as first:
        raise error
    with memory.request("me", 0) as second:
        assert (set(second) == set(first)) is lent_again
    memory.close()


def test_pages_grow_little_beyond_what_is_in_them() -> None:
    with Pages() as pages:
        for _ in range(100):
            pages.append(bytes(2**20))
        assert pages.region.size == 100 * 2**20
        assert pages.held <= 116 * 2**20
        assert os.stat(pages.region.path).st_size == pages.held


def memory_of(most_bytes: int, most_of_caller: int = 64) -> GemmMemory:
    return GemmMemory(most_bytes, most_of_caller, lambda: None)


def test_pages_are_lent_again_to_what_fits_them() -> None:
    memory = memory_of(16 * 2**20)
    with memory.request("me", 0) as (first, second):
        first.append(bytes(2**21))
        held = {first.region.path, second.region.path}
    with memory.request("me", 2**20 + 1) as (again, small):
        assert (again, small) == (first, second)
        assert again.region.size == 0
        assert {again.region.path, small.region.path} == held
        again.append(bytes(2**22))
    with memory.request("me", 0) as (left, new):  # a quarter of all is kept, the larger ones first
        assert left is first
        assert new is not second
    memory.close()


def test_one_caller_holds_half_of_the_memory_and_all_callers_no_more_than_all() -> None:
    memory = memory_of(16 * 2**20)
    with contextlib.ExitStack() as opened:
        mine, _ = opened.enter_context(memory.request("me", 0))
        mine.append(bytes(9 * 2**20))  # one request may be as large as a request may be
        with pytest.raises(Refusal, match=r"this caller's.*max_buffer_bytes"):
            opened.enter_context(memory.request("me", 0))
        other, answer = opened.enter_context(memory.request("other", 0))
        answer.resize(2 * 2**20)
        with pytest.raises(Refusal, match=r"all of 16777216 bytes \(max_buffer_bytes\)") as refused:
            other.append(bytes(10 * 2**20))
        assert int((refused.value.headers or {})["Retry-After"]) > 0
        assert other.held == 2**20
    with memory.request("other", 0) as (whole, _):
        whole.append(bytes(14 * 2**20))
    memory.close()


def test_one_caller_has_so_many_requests_in_flight() -> None:
    memory = memory_of(2**24, most_of_caller=2)
    with contextlib.ExitStack() as opened:
        for name in ("me", "other", "me"):
            opened.enter_context(memory.request(name, 0))
        with pytest.raises(Refusal, match=r"2 GEMMs.*max_caller_gemms"):
            opened.enter_context(memory.request("me", 0))
    with memory.request("me", 0):
        pass
    memory.close()


class Unwilling:
    """A map that cannot grow."""

    def __init__(self, mapped: Any) -> None:
        self._mapped = mapped

    def __len__(self) -> int:
        return len(self._mapped)

    def resize(self, _size: int) -> None:
        raise OSError("no memory")

    def close(self) -> None:
        self._mapped.close()


def fail_to_grow(memory: GemmMemory, _patch: pytest.MonkeyPatch) -> None:
    with memory.request("me", 0) as (body, _):
        body._map = Unwilling(body._map)  # type: ignore[assignment]
        body.append(bytes(2**23))


def fail_to_make(memory: GemmMemory, patch: pytest.MonkeyPatch) -> None:
    def unmade(*_: object) -> int:
        raise OSError("no memory")

    with patch.context() as here:
        here.setattr(os, "memfd_create", unmade)
        with memory.request("me", 0):
            pass


@pytest.mark.parametrize("fail", [fail_to_grow, fail_to_make])
def test_what_a_caller_did_not_get_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, fail: Callable[[GemmMemory, pytest.MonkeyPatch], None]
) -> None:
    """The caller has another request all the while."""
    memory = memory_of(2**25)
    with memory.request("me", 0):
        for _ in range(9):
            with pytest.raises(OSError, match="no memory"):
                fail(memory, monkeypatch)
        with memory.request("me", 0) as (_, result):
            result.resize(2**23)  # half of 2**25 less three times the least
    memory.close()
