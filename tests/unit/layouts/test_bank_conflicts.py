"""What the documents say about shared memory, for the reference kernels that they describe."""

from __future__ import annotations

import pytest

from benchmarks.ladder.bank_conflicts import Access, accesses, b_element, conflicts_per_phase
from kernels.common.smem import bank_conflicts
from kernels.reference import REFERENCE_KERNELS
from tilewright import Config, GemmProblem

BY_NAME = {reference.name: reference for reference in REFERENCE_KERNELS}
SIXTEEN_BIT = [
    reference.name
    for reference in REFERENCE_KERNELS
    if reference.problem.dtype.size == 2 and reference.family != "wgmma_ws"
]


def means(name: str) -> dict[str, float]:
    reference = BY_NAME[name]
    return conflicts_per_phase(reference.config, reference.problem)


def named(name: str, access: str) -> list[Access]:
    reference = BY_NAME[name]
    return [one for one in accesses(reference.config, reference.problem) if one.name == access]


@pytest.mark.parametrize("access", ["store a", "store b"])
@pytest.mark.parametrize("name", ["000-wmma-4-stage", "000-mma-m16n8k8", "000-simplified"])
def test_blocked_copies_meet_in_the_pairs_of_000_section_8(name, access) -> None:
    """Of the eight threads that the hardware serves together, T0 and T2, T1 and T3, T4 and T6, T5 and T7."""
    [one] = named(name, access)
    banks = [address // 4 % 32 for address in one.addresses[:8]]
    pairs = {(i, j) for i in range(8) for j in range(i + 1, 8) if banks[i] == banks[j]}
    assert pairs == {(0, 2), (1, 3), (4, 6), (5, 7)}
    assert (one.phases, one.conflicts) == (4, 4)


# Rows of 32 bytes: row r starts in bank 8 r mod 32, so that rows 0 and 4, 1 and 5 ... of the eight rows of a
# phase meet. That holds for ldmatrix and for direct loads.
@pytest.mark.parametrize("name", ["000-wmma-naive", "000-mma-m16n8k8", "000-mma-ldmatrix", "000-simplified"])
def test_blocked_fragment_loads_take_two_passes(name) -> None:
    found = means(name)
    assert (found["load a"], found["load b"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    "name",
    ["000-crosswise", "000-crosswise-ldmatrix", "000-partial-ldmatrix", "000-unroll-snake"],
)
def test_crosswise_is_free_of_conflicts(name) -> None:
    assert set(means(name).values()) == {0.0}


@pytest.mark.parametrize("name", ["001-permuted", "001-permuted-epilogue", "004-2-permuted", "004-3b-tiling"])
def test_ldmatrix_of_001_and_004_is_free_of_conflicts(name) -> None:
    for access in ("load a", "load b"):
        loads = named(name, access)
        assert {one.width for one in loads} == {16}
        assert [one.conflicts for one in loads] == [0] * len(loads)


def test_without_the_permutation_004_would_conflict() -> None:
    """Threads 0, 2, 4, 6 in banks 0 .. 3 and threads 1, 3, 5, 7 in banks 16 .. 19: four passes a phase."""
    plain = Access("load a", tuple(lane % 16 * 64 + lane // 16 * 16 for lane in range(32)), 16)
    assert [address // 4 % 32 for address in plain.addresses[:8]] == [0, 16] * 4
    assert plain.conflicts == 4 * 3


def test_the_base_of_001_has_conflicts() -> None:
    """Rows of 64 bytes: of the eight rows of a phase, four start in bank 0 and four in bank 16."""
    assert (means("001-base")["load a"], means("001-base")["load b"]) == (3.0, 3.0)


def test_staging_d_in_001_is_free_of_conflicts() -> None:
    """Figure 4: eight rows of four neighbouring words, each row one chunk further."""
    stores = named("001-permuted-epilogue", "stage d")
    assert [(one.width, one.phases, one.conflicts) for one in stores] == [(4, 1, 0)] * 2


def test_single_elements_of_the_naive_wmma_kernel() -> None:
    """A warp stores one row of 32 halves: two 16-word halves of it lie 512 bytes apart, in the same banks
    8 words each: words 0 .. 7 of two blocks."""
    [one] = named("000-wmma-naive", "store a")
    assert sorted({address // 4 % 32 for address in one.addresses}) == list(range(8))
    assert (one.phases, one.conflicts) == (1, 1)


def test_b_stored_by_rows_of_k() -> None:
    """m16n8k16 of B in layout nn, plain rows of 32 halves: two-byte loads, k rows 2t and 2t + 1."""
    loads = named("004-1-naive", "load b")
    assert {one.width for one in loads} == {2}
    # Lane l reads k = 2 (l % 4), column l / 4: byte k * 64 + column * 2.
    assert loads[0].addresses[:6] == (0, 128, 256, 384, 2, 130)


def test_kernel_1_of_004_has_the_conflicts_of_the_document() -> None:
    """Rows of 32 columns, 64 bytes: lanes t = 0 .. 3 read k 0, 2, 4, 6, which are 128 bytes apart, so four
    lanes meet on every bank; its stores are neighbours."""
    for i in range(4):
        elements = [b_element(lane, i) for lane in range(32)]
        assert bank_conflicts([(k * 64 + column * 2) // 4 * 4 for k, column in elements], 4) == 3
    found = means("004-1-naive")
    assert found == {"store a": 0.0, "store b": 0.0, "load a": 1.0, "load b": 3.0}
    assert found == means("004-1b-tiling")


def test_tma_and_wgmma_are_free_of_conflicts() -> None:
    assert set(means("003-stmatrix").values()) == {0.0}


@pytest.mark.parametrize("name", SIXTEEN_BIT)
def test_every_reference_kernel_has_stores_and_loads(name) -> None:
    reference = BY_NAME[name]
    found = accesses(reference.config, reference.problem)
    assert {"store a", "store b", "load a", "load b"} <= {one.name for one in found}
    for one in found:
        assert len(one.addresses) == 32
        assert all(address % min(one.width, 16) == 0 for address in one.addresses)


def test_what_is_not_described_is_refused() -> None:
    with pytest.raises(ValueError, match="simt"):
        conflicts_per_phase(Config.of("simt", {}), GemmProblem(1, 1, 1))
    reference = BY_NAME["002-s8-s32"]
    with pytest.raises(ValueError, match="16-bit"):
        conflicts_per_phase(reference.config, reference.problem)
