"""Memory of GEMMs on request that stays mapped: seen through, grown, given up, bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.errors import Kind, Refusal
from service.gemm.memory import GemmMemory
from tilewright.errors import InvalidProblem
from tuner.devices.host import HostDevice
from tuner.workers import shared_memory
from tuner.workers.shared_memory import Mappings, Pages, Region


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
def sparse() -> Iterator[Path]:
    path = Path("/dev/shm/tilewright_mappings2")
    path.touch()
    os.truncate(path, 64 * 2**20)
    yield path
    path.unlink()


def test_of_a_sparse_file_nothing_is_taken_but_what_is_used(device: Pinning, sparse: Path) -> None:
    kept = Mappings(device)
    file = str(sparse)
    small = array(kept, Region(file, 16 * 2**20, 4))
    assert sparse.stat().st_blocks * 512 <= 2**21
    used = {"a": Region(file, 0, 8), "b": Region(file, 40 * 2**20 + 4, 3 * 2**20), "d": Region(file, 8, 8)}
    arrays = kept.arrays(used)
    assert sparse.stat().st_blocks * 512 <= 8 * 2**20
    assert device.pinned == [2**21, 2**21, 2**22]
    assert np.shares_memory(arrays["a"].base, arrays["d"])  # one mapping
    for name, value in zip("abd", b"xyz", strict=True):
        arrays[name][:] = value
    small[:] = ord("s")
    written = sparse.read_bytes()
    assert written[:16] == b"x" * 8 + b"z" * 8
    assert written[16 * 2**20 :][:5] == b"ssss\0"
    assert written[40 * 2**20 + 3 :][:2] == b"\0y"
    assert written.count(b"y") == 3 * 2**20
    kept.close()
    assert device.pinned == []


def test_what_is_mapped_grows_together_and_is_mapped_once(device: Pinning, sparse: Path) -> None:
    kept, file = Mappings(device), str(sparse)
    array(kept, Region(file, 0, 2**21))
    array(kept, Region(file, 2**22, 2**21))
    assert device.pinned == [2**21, 2**21]
    both = kept.arrays({"a": Region(file, 2**21, 1), "b": Region(file, 5 * 2**20, 1)})
    assert device.pinned == [3 * 2**21]
    assert array(kept, Region(file, 100, 1)).ctypes.data == both["a"].ctypes.data - 2**21 + 100
    assert device.pinned == [3 * 2**21]
    os.truncate(sparse, 2**21)
    assert len(array(kept, Region(file, 0, 2**21))) == 2**21
    assert device.pinned == [2**21]
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
            array(kept, Region(whole.path, 2**20, 2**20 + 1))


def test_a_file_without_a_name_any_more_is_let_go(kept: Mappings, device: Pinning) -> None:
    path = Path("/dev/shm/tilewright_mappings1")
    path.write_bytes(b"abc")
    taken = array(kept, Region(str(path), 0, 3))
    kept.trim()
    assert device.pinned == [3]
    path.unlink()
    kept.trim()
    assert device.pinned == []
    assert bytes(taken) == b"abc"


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
    memory = GemmMemory(2**22)
    with pytest.raises(type(error)), memory.pages() as first:
        raise error
    with memory.pages() as second:
        assert (second is first) is lent_again
    memory.close()


def test_pages_grow_little_beyond_what_is_in_them() -> None:
    with Pages() as pages:
        for _ in range(100):
            pages.append(bytes(2**20))
        assert pages.region.size == 100 * 2**20
        assert pages.held <= 116 * 2**20
        assert os.stat(pages.region.path).st_size == pages.held


def test_pages_are_lent_again_within_the_limit() -> None:
    memory = GemmMemory(3 * 2**20)
    with memory.pages() as first, memory.pages() as second:
        first.append(bytes(2**21))
        held = {first.region.path, second.region.path}
    with memory.pages() as again:
        assert again is first  # the largest
        assert again.region.size == 0
        assert {again.region.path, second.region.path} == held
        again.append(bytes(2**22))
    with memory.pages() as left:
        assert left is second
    memory.close()
