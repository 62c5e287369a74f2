"""The order of tiles: hand-drawn walks, permutations, and the formula of the CUDA sources."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nvrtc import compile_text
from kernels.raster import RASTERS, raster_tile


def walk(rows: int, columns: int, raster: str, group: int) -> list[tuple[int, int]]:
    return [raster_tile(index, (rows, columns), raster, group) for index in range(rows * columns)]


def drawn(rows: int, columns: int, raster: str, group: int) -> list[str]:
    """The grid of tiles with each tile's block index as one base-36 digit."""
    order = {tile: index for index, tile in enumerate(walk(rows, columns, raster, group))}
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return ["".join(digits[order[row, column]] for column in range(columns)) for row in range(rows)]


def test_group_of_two_along_m() -> None:
    # Two rows of tiles go together, down the pair and then on to the next column; the fifth row is alone.
    assert drawn(5, 4, "m", 2) == [
        "0246",
        "1357",
        "8ace",
        "9bdf",
        "ghij",
    ]


def test_group_of_two_along_n() -> None:
    # The same, transposed: two columns of tiles go together, the fifth column is alone.
    assert drawn(4, 5, "n", 2) == [
        "0189g",
        "23abh",
        "45cdi",
        "67efj",
    ]


def test_without_groups() -> None:
    assert drawn(2, 3, "m", 1) == ["012", "345"]
    assert drawn(2, 3, "n", 1) == ["024", "135"]


def test_a_group_wider_than_the_grid_walks_all_of_it() -> None:
    assert drawn(3, 2, "m", 16) == ["03", "14", "25"]


@settings(max_examples=200, deadline=None, database=None)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(RASTERS), st.integers(1, 20))
def test_every_tile_is_visited_once(rows: int, columns: int, raster: str, group: int) -> None:
    tiles = {(row, column) for row in range(rows) for column in range(columns)}
    visited = walk(rows, columns, raster, group)
    assert set(visited) == tiles
    assert len(visited) == len(tiles)


# NOTE: raster.cuh is compiled as constexpr, so that static_assert can call it; `min` must be a macro then.
_SOURCE = """
#include "config.cuh"
#define __forceinline__ constexpr
#define min(x, y) ((x) < (y) ? (x) : (y))
#include "tile/raster.cuh"
#define TILE(INDEX, ROWS, COLUMNS, ROW, COLUMN) \\
    static_assert(raster_tile(INDEX, ROWS, COLUMNS).m == ROW, ""); \\
    static_assert(raster_tile(INDEX, ROWS, COLUMNS).n == COLUMN, "");
%s
extern "C" __global__ void nothing() {}
"""
_DEFINES: dict[str, int | str] = {
    "IN_TYPE": "f16", "OUT_TYPE": "f16", "A_TRANSPOSED": 0, "B_TRANSPOSED": 1, "TILE_M": 16, "TILE_N": 16,
    "TILE_K": 16, "SPLIT_K": 1, "ALIGN_D": 16, "ACTIVATION": 0, "HAS_BIAS": 0, "HAS_C": 0,
}  # fmt: skip


@pytest.mark.parametrize("raster", RASTERS)
@pytest.mark.parametrize("group", [1, 2, 8])
def test_the_cuda_source_walks_the_same_way(raster: str, group: int) -> None:
    """The compiler evaluates ``raster_tile`` of raster.cuh and compares it with ours."""
    claims = [
        f"TILE({index}, {rows}, {columns}, {row}, {column})"
        for rows, columns in ((5, 4), (4, 5), (1, 7), (7, 1), (11, 3))
        for index, (row, column) in enumerate(walk(rows, columns, raster, group))
    ]
    defines = {**_DEFINES, "RASTER": RASTERS.index(raster), "GROUP": group}
    compile_text(_SOURCE % "\n".join(claims), "sm_80", tuple(defines.items()), entry="nothing")
