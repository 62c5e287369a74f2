"""Shared-memory layouts: offsets by hand, bank conflicts, and the formula of the CUDA sources."""

from __future__ import annotations

import pytest

from kernels.base.spec import CompileError
from kernels.common.smem import LAYOUTS, bank_conflicts, chunk_offset, row_stride, tile_bytes
from kernels.compiler.nvrtc import compile_text

CHUNKS = (2, 4, 8, 12, 16, 24, 32)


# Rows of 32 half-precision elements are 4 chunks (64 bytes) unless noted.
@pytest.mark.parametrize(
    ("layout", "chunks", "row", "chunk", "offset"),
    [
        # 16 x 16 blocks of 512 bytes, a row of a block is 32 bytes: 5 * 32 + 16 = 176.
        ("blocked", 4, 5, 1, 176),
        ("blocked", 4, 0, 2, 512),  # the second block of the same rows
        ("blocked", 4, 16, 0, 1024),  # two blocks a block row
        ("blocked", 4, 21, 3, 1024 + 512 + 5 * 32 + 16),
        # Rows of 4 + 1 chunks: 3 * 80 + 32.
        ("padded", 4, 3, 2, 272),
        ("padded", 8, 1, 0, 144),
        # 4 chunks: two rows fill the 32 banks, so the XOR changes every second row: rows 4, 5 shift by 2.
        ("xor", 4, 0, 3, 48),
        ("xor", 4, 1, 3, 64 + 48),
        ("xor", 4, 5, 1, 5 * 64 + 3 * 16),  # 1 ^ 2
        ("xor", 4, 7, 3, 7 * 64),  # 3 ^ 3
        ("xor", 4, 8, 1, 8 * 64 + 16),  # eight rows, then again
        ("xor", 8, 5, 1, 5 * 128 + 4 * 16),  # one row fills the banks: 1 ^ 5
        ("xor", 2, 4, 0, 4 * 32 + 16),  # four rows fill the banks: 0 ^ 1
        ("xor", 16, 3, 9, 3 * 256 + 10 * 16),  # 9 ^ 3
        ("xor", 12, 2, 9, 2 * 192 + 8 * 16),  # gcd(12, 8) = 4 chunks shift together: 9 ^ 1
        ("permuted", 4, 5, 1, 5 * 64 + 3 * 16),  # 1 + 2
        ("permuted", 4, 7, 3, 7 * 64 + 2 * 16),  # 3 + 3 mod 4
        ("permuted", 8, 7, 7, 7 * 128 + 6 * 16),  # 7 + 7 mod 8
        ("permuted", 12, 6, 10, 6 * 192 + 16),  # 10 + 3 mod 12
    ],
)
def test_offsets_by_hand(layout: str, chunks: int, row: int, chunk: int, offset: int) -> None:
    assert chunk_offset(layout, chunks, row, chunk) == offset


def test_xor_is_the_crosswise_layout_of_the_seed() -> None:
    """Document 000, section 8: two rows of 32 elements lie in one of 64, and
    ``col = row % 2 * 32 + col; row = row / 2; col ^= (row & 3) << 3``, in elements of 2 bytes."""
    for row in range(128):
        for chunk in range(4):
            column = (row % 2 * 32 + chunk * 8) ^ ((row // 2 & 3) << 3)
            assert chunk_offset("xor", 4, row, chunk) == (row // 2 * 64 + column) * 2


def test_xor_is_the_store_column_of_document_004() -> None:
    """``storeCol = (laneID % 8) ^ (laneID / 8)`` in rows of eight 16-byte vectors; a tile row has four."""
    for lane in range(32):
        vector = lane // 8 * 8 + ((lane % 8) ^ (lane // 8))
        assert chunk_offset("xor", 4, lane // 4, lane % 4) == vector * 16


def test_permuted_is_the_rotation_of_document_001() -> None:
    """``(lane_id % 4 + (A_smem_idx % 8) / 2) % 4`` for rows of 32 elements."""
    for row in range(64):
        for chunk in range(4):
            assert chunk_offset("permuted", 4, row, chunk) == row * 64 + (chunk + row % 8 // 2) % 4 * 16


def test_tile_bytes() -> None:
    # 128 rows of 32 halves: 128 * 64; padded 128 * (64 + 16).
    assert [tile_bytes(layout, 128, 4) for layout in LAYOUTS] == [8192, 10240, 8192, 8192, 8192]
    assert row_stride("padded", 8) == 144
    assert row_stride("xor", 8) == 128


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_chunks_never_overlap_and_stay_inside(layout: str, chunks: int) -> None:
    rows = 64
    offsets = [chunk_offset(layout, chunks, row, chunk) for row in range(rows) for chunk in range(chunks)]
    assert len(set(offsets)) == rows * chunks
    assert all(offset % 16 == 0 for offset in offsets)
    assert min(offsets) == 0
    assert max(offsets) + 16 <= tile_bytes(layout, rows, chunks)
    if layout != "padded":
        assert sorted(offsets) == list(range(0, rows * chunks * 16, 16))


def ldmatrix(layout: str, chunks: int, row0: int, chunk: int) -> list[int]:
    """Addresses of an x4 ldmatrix of A: lane l takes row l % 16, chunk + l / 16."""
    return [chunk_offset(layout, chunks, row0 + lane % 16, chunk + lane // 16) for lane in range(32)]


@pytest.mark.parametrize("layout", ["padded", "xor", "permuted"])
@pytest.mark.parametrize("chunks", [2, 4, 8, 12, 16])
def test_ldmatrix_is_free_of_conflicts(layout: str, chunks: int) -> None:
    for row0 in (0, 16, 48):
        for chunk in range(0, chunks, 2):
            assert bank_conflicts(ldmatrix(layout, chunks, row0, chunk), 16) == 0


@pytest.mark.parametrize("chunks", [4, 8, 12, 16])
def test_direct_loads_are_free_of_conflicts(chunks: int) -> None:
    """A fragment register by 4-byte loads: lane l takes row l / 4, bytes l % 4 * 4 of one chunk."""
    for layout in ("xor", "permuted"):
        for chunk in range(chunks):
            lanes = [chunk_offset(layout, chunks, lane // 4, chunk) + lane % 4 * 4 for lane in range(32)]
            assert bank_conflicts(lanes, 4) == 0


def test_plain_rows_conflict() -> None:
    # Eight rows of 64 bytes start on two bank groups only: 4 rows a group, so 3 extra passes in each of the
    # 4 phases. Rows of 128 bytes all start on bank 0: 7 extra passes a phase.
    def plain(chunks: int) -> list[int]:
        return [lane % 16 * chunks * 16 + lane // 16 * 16 for lane in range(32)]

    assert bank_conflicts(plain(4), 16) == 4 * 3
    assert bank_conflicts(plain(8), 16) == 4 * 7


def store(layout: str) -> list[int]:
    """A warp stores eight rows of 32 halves: lane l has row l / 4, chunk l % 4."""
    return [chunk_offset(layout, 4, lane // 4, lane % 4) for lane in range(32)]


def test_blocked_stores_conflict_in_the_pairs_of_the_seed() -> None:
    """Document 000, section 8: T0 and T2, T1 and T3, T4 and T6, T5 and T7 meet in the same banks."""
    banks = [address // 4 % 32 for address in store("blocked")]
    pairs = {(i, j) for i in range(8) for j in range(i + 1, 8) if banks[i] == banks[j]}
    assert pairs == {(0, 2), (1, 3), (4, 6), (5, 7)}
    assert bank_conflicts(store("blocked"), 16) == 4  # one extra pass in each of four phases


@pytest.mark.parametrize("layout", ["xor", "permuted"])
def test_swizzled_stores_are_free_of_conflicts(layout: str) -> None:
    assert bank_conflicts(store(layout), 16) == 0


def test_counting_conflicts() -> None:
    assert bank_conflicts([4 * lane for lane in range(32)], 4) == 0
    assert bank_conflicts([0] * 32, 4) == 0  # one word for all is a broadcast
    assert bank_conflicts([128 * lane for lane in range(32)], 4) == 31
    assert bank_conflicts([8 * lane for lane in range(32)], 4) == 1
    assert bank_conflicts([8 * lane for lane in range(32)], 8) == 0  # served as two half warps
    assert bank_conflicts([16 * lane for lane in range(32)], 16) == 0


_SOURCE = """
#include "common/smem_tile.cuh"
template <int CHUNKS, int LAYOUT> using Tile = SmemTile<64, CHUNKS * 16, static_cast<SmemLayout>(LAYOUT)>;
%s
extern "C" __global__ void nothing() {}
"""


def claims(layout: str, chunks: int) -> list[str]:
    """Statements about one tile of smem_layout.cuh that the compiler can check."""
    tile = f"Tile<{chunks}, {LAYOUTS.index(layout)}>"
    lines = [f'static_assert({tile}::bytes == {tile_bytes(layout, 64, chunks)}, "");']
    for row in (*range(9), 15, 16, 23, 37, 63):
        for chunk in {0, 1, chunks // 2, chunks - 1}:
            offset = chunk_offset(layout, chunks, row, chunk)
            base, rest = row // 16 * 16, row % 16
            lines.append(f'static_assert({tile}::chunk({row}, {chunk}) == {offset}, "");')
            lines.append(f'static_assert({tile}::chunk_from({base}, {rest}, {chunk}) == {offset}, "");')
    return lines


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_cuda_source_has_the_same_offsets(layout: str) -> None:
    lines = [line for chunks in CHUNKS for line in claims(layout, chunks)]
    compile_text(_SOURCE % "\n".join(lines), "sm_80", entry="nothing")


def test_a_wrong_offset_would_not_compile() -> None:
    with pytest.raises(CompileError, match="static assertion failed"):
        compile_text(_SOURCE % 'static_assert(Tile<4, 2>::chunk(5, 1) == 336, "");', "sm_80", entry="nothing")
