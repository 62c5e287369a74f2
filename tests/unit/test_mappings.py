"""Memory of GEMMs on request that stays mapped: seen through, grown, given up, bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.gemm_memory import GemmMemory
from tilewright.errors import InvalidProblem
from tuner import mappings
from tuner.devices.host import HostDevice
from tuner.mappings import Mappings
from tuner.regions import Pages, Region


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


def mappings_end(made: Mappings, device: Pinning) -> None:
    """Every file of these tests is given up at their end."""
    made.trim()
    assert device.pinned == []


def test_pages_that_serve_again_are_mapped_once(kept: Mappings, device: Pinning) -> None:
    with Pages() as pages:
        for values in (b"first", b"second one"):
            pages.resize(0)
            pages.append(values)
            assert bytes(kept.array(pages.region)) == values
        assert bytes(kept.array(pages.region.part(7, 3))) == b"one"
        kept.array(pages.region)[:] = ord("x")
        assert pages.read(0, 100) == b"x" * 10
        assert device.pinned == [2**20]
        pages.append(bytes(3 * 2**20))
        assert kept.array(pages.region)[-1] == 0
        assert device.pinned == [pages.region.size]  # anew, as far as it is needed


def test_what_ends_too_early_is_refused(kept: Mappings) -> None:
    with Pages() as pages:
        whole = pages.resize(2**21)
        kept.array(whole)
        with pytest.raises(InvalidProblem, match="behind its memory's end"):
            kept.array(Region(whole.path, 2**20, 2**20 + 1))


def test_a_file_without_a_name_any_more_is_let_go(kept: Mappings, device: Pinning) -> None:
    path = Path("/dev/shm/tilewright_mappings1")
    path.write_bytes(b"abc")
    array = kept.array(Region(str(path), 0, 3))
    kept.trim()
    assert device.pinned == [3]
    path.unlink()
    kept.trim()
    assert device.pinned == []
    assert bytes(array) == b"abc"


def test_the_end_lets_go_of_what_others_still_have(kept: Mappings, device: Pinning) -> None:
    with Pages() as pages:
        kept.array(pages.resize(8))
        assert device.pinned == [2**20]
        kept.close()
        assert device.pinned == []


def test_the_oldest_go_where_there_are_too_many(
    kept: Mappings, device: Pinning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "_MOST_FILES", 2)
    with Pages() as first, Pages() as second, Pages() as third:
        for pages in (first, second, third, first):
            kept.array(pages.resize(8))[:] = 1
        kept.trim()
        assert len(device.pinned) == 2
        kept.array(first.region)
        assert len(device.pinned) == 2
        monkeypatch.setattr(mappings, "_MOST_BYTES", 2**20)
        kept.trim()
        assert len(device.pinned) == 1
        beyond = kept.array(second.resize(2**20 + 1))  # mapped for this time alone
        beyond[-1] = 7
        assert second.read(2**20, 1) == b"\7"
        assert len(device.pinned) == 1
        assert np.shares_memory(kept.array(first.region), kept.array(first.region))


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
