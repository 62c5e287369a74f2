"""Descriptors and swizzle of wgmma, held against the numbers of document 003 and against each other."""

from __future__ import annotations

import itertools

import pytest
from wgmma_layout import SwizzledTile, descriptor, fragment_position, swizzle_128b, wgmma_address

from kernels.common.smem import bank_conflicts, chunk_offset

# Document 003: 128 x 128 x 64, A stored M x K, B stored K x N.
A = SwizzledTile(128, 64, k_major=True)
B = SwizzledTile(128, 64, k_major=False)


def test_the_offsets_of_document_003() -> None:
    # Its gemm(): offset_a = i * 512 + k * 2 + stage * 1024, offset_b = k * 128 + stage * 1024.
    assert [A.extent_offset(x) for x in (0, 64)] == [0, 512]
    assert [A.step_offset(k) for k in range(4)] == [0, 2, 4, 6]
    assert [B.step_offset(k) for k in range(4)] == [0, 128, 256, 384]
    # A stage of A is 128 * 64 elements: 1024 units of 16 bytes; the same for B.
    assert A.bytes // 16 == B.bytes // 16 == 1024


def test_the_descriptors_of_document_003() -> None:
    # make_wgmma_desc(sA, 1, sbo 64, lbo 1) and make_wgmma_desc(sB, 1, sbo 64, lbo 512).
    assert (A.leading, A.stride) == (1, 64)
    assert (B.leading, B.stride) == (512, 64)
    # Address 0x12400 >> 4 = 0x1240; 512 = 0x200 at bit 16, 64 = 0x40 at bit 32, type 1 at bit 62.
    assert descriptor(0x12400, B.leading, B.stride) == 0x4000_0040_0200_1240


def test_an_offset_never_leaves_the_address_field() -> None:
    """Adding to a descriptor must not carry into the leading offset: 227 KiB are 0x38C0 units."""
    last = 227 * 1024 - 16
    assert descriptor(last, 0, 0) & 0xFFFF == last // 16 < 1 << 14


def test_the_swizzle_is_chunk_xor_line() -> None:
    for line, chunk in itertools.product(range(16), range(8)):
        assert swizzle_128b(line * 128 + chunk * 16 + 6) == line * 128 + (chunk ^ line % 8) * 16 + 6
    # The same as family mma_sync's XOR layout for rows of eight chunks.
    assert all(
        swizzle_128b(row * 128 + chunk * 16) == chunk_offset("xor", 8, row, chunk)
        for row, chunk in itertools.product(range(16), range(8))
    )


TILES = [
    SwizzledTile(extent, depth, k_major)
    for extent, depth, k_major in itertools.product((64, 128, 256), (64, 128), (True, False))
] + [SwizzledTile(16, 64, True), SwizzledTile(48, 128, True), SwizzledTile(192, 128, False)]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tma_fills_the_tile_without_gaps(tile: SwizzledTile) -> None:
    offsets = [tile.element_offset(x, k) for x, k in itertools.product(range(tile.extent), range(tile.depth))]
    assert sorted(offsets) == list(range(0, tile.bytes, 2))
    assert tile.panels * tile.box[0] * tile.box[1] == tile.extent * tile.depth


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_wgmma_reads_where_tma_wrote(tile: SwizzledTile) -> None:
    """Operand B: one wgmma covers the whole extent, one k step at a time."""
    for step in range(tile.depth // 16):
        start = tile.step_offset(step) * 16
        for x, k in itertools.product(range(tile.extent), range(16)):
            assert wgmma_address(start, tile, x, k) == tile.element_offset(x, step * 16 + k), (step, x, k)


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.extent % 64 == 0], ids=str)
def test_atoms_of_64_rows_start_at_their_offset(tile: SwizzledTile) -> None:
    """Operand A: one wgmma covers 64 rows."""
    for atom, step in itertools.product(range(tile.extent // 64), range(tile.depth // 16)):
        start = (tile.extent_offset(64 * atom) + tile.step_offset(step)) * 16
        for x, k in itertools.product(range(64), range(16)):
            expected = tile.element_offset(atom * 64 + x, step * 16 + k)
            assert wgmma_address(start, tile, x, k) == expected, (atom, step, x, k)


BYTES = [SwizzledTile(extent, depth, True, element=1) for extent in (64, 96, 256) for depth in (128, 256)]


@pytest.mark.parametrize("tile", BYTES, ids=str)
def test_8_bit_tiles(tile: SwizzledTile) -> None:
    """A line holds 128 of k, and one wgmma takes 32 bytes of it as with 16 bits."""
    offsets = [tile.element_offset(x, k) for x, k in itertools.product(range(tile.extent), range(tile.depth))]
    assert sorted(offsets) == list(range(tile.bytes))
    for step in range(tile.depth // 32):
        start = tile.step_offset(step) * 16
        for x, k in itertools.product(range(tile.extent), range(32)):
            assert wgmma_address(start, tile, x, k) == tile.element_offset(x, step * 32 + k), (step, x, k)


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("slices", [2, 4])
def test_multicast_slices_keep_the_swizzle(slices: int, k_major: bool) -> None:
    """CTAs load equal runs of lines; each starts where the swizzle does, as if one CTA loaded all."""
    whole, sliced = SwizzledTile(128, 64, k_major), SwizzledTile(128, 64, k_major, slices=slices)
    assert sliced.box == (whole.box[0] // slices, whole.box[1])
    assert sliced.box[0] * slices * sliced.panels * 128 == sliced.bytes == whole.bytes
    run = sliced.box[0] * 128
    for line, byte in itertools.product(range(sliced.box[0]), range(0, 128, 16)):
        assert swizzle_128b(run + line * 128 + byte) == run + swizzle_128b(line * 128 + byte)


def test_lines_that_do_not_divide_into_eights_are_loaded_whole() -> None:
    """Four lines on, the swizzle is another: then each CTA loads whole tiles, of every n-th k tile."""
    assert swizzle_128b(4 * 128) != 4 * 128 + swizzle_128b(0)
    for lines, slices, divided in (
        (168, 2, False),
        (16, 4, False),
        (144, 4, False),
        (144, 2, True),
        (32, 4, True),
    ):
        tile = SwizzledTile(lines, 64, k_major=True, slices=slices)
        assert tile.divided is divided
        assert tile.box == (lines // slices if divided else lines, 64)


def test_fragments_cover_the_result_once() -> None:
    positions = [
        (row, col + e)
        for thread, pair in itertools.product(range(128), range(96 // 4))
        for row, col in [fragment_position(thread, pair)]
        for e in (0, 1)
    ]
    assert sorted(positions) == list(itertools.product(range(64), range(96)))


@pytest.mark.parametrize("tile_n", range(16, 257, 16))
def test_stmatrix_puts_fragments_where_rows_are_read(tile_n: int) -> None:
    """Lane l addresses row l % 16 of the warp, chunk 2 j + l / 16; its matrix l / 8 holds pair 4 j + l / 8.

    That is where ``fragment_position`` says the pair belongs, in a layout without bank conflicts.
    """
    chunks = tile_n // 8
    for p in range(0, tile_n // 4, 4):
        addressed = [(lane % 16, p // 2 + lane // 16) for lane in range(32)]
        for matrix, lane in itertools.product(range(4), range(32)):
            row, column = fragment_position(lane, p + matrix)
            # Row lane / 4 of the matrix goes where lane 8 matrix + lane / 4 points.
            assert (row, column // 8) == addressed[matrix * 8 + lane // 4]
        offsets = [chunk_offset("xor", chunks, row, chunk) for row, chunk in addressed]
        assert bank_conflicts(offsets, 16) == 0


@pytest.mark.parametrize("tile_n", [64, 128, 192, 256])
def test_the_copy_to_d_reads_without_conflicts(tile_n: int) -> None:
    chunks = tile_n // 8
    for first in range(0, 16 * chunks, 32):
        offsets = [chunk_offset("xor", chunks, i // chunks, i % chunks) for i in range(first, first + 32)]
        assert bank_conflicts(offsets, 16) == 0
