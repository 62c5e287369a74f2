"""The raster order: hand-drawn orders, permutations, and the formula of the CUDA sources."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.base.spec import CompileError
from kernels.common.cuda import RASTER_AXES
from kernels.compiler.nvrtc import compile_text


def raster_tile(
    index: int, tiles: tuple[int, int], raster: str, swizzle_size: int, snake: bool = False
) -> tuple[int, int]:
    """(row, column) of tile number ``index`` in a grid of (rows, columns) tiles.

    The tiles are cut into strips of ``swizzle_size`` along axis ``raster``; the order takes the tiles of a
    strip along that axis, then goes one step across. With ``snake`` every other strip is reversed.
    """
    along, across = (tiles[1], tiles[0]) if raster == "n" else tiles
    strip, within = divmod(index, swizzle_size * across)
    first = strip * swizzle_size
    width = min(along - first, swizzle_size)
    i, j = within % width, within // width
    if snake and strip % 2:
        j = across - 1 - j
    return (j, first + i) if raster == "n" else (first + i, j)


def raster_order(
    rows: int, columns: int, raster: str, swizzle_size: int, snake: bool = False
) -> list[tuple[int, int]]:
    return [
        raster_tile(index, (rows, columns), raster, swizzle_size, snake) for index in range(rows * columns)
    ]


def drawn(rows: int, columns: int, raster: str, swizzle_size: int, snake: bool = False) -> list[str]:
    """The grid of tiles with each tile's number as one digit."""
    order = {
        tile: index for index, tile in enumerate(raster_order(rows, columns, raster, swizzle_size, snake))
    }
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return ["".join(digits[order[row, column]] for column in range(columns)) for row in range(rows)]


def test_swizzle_size_two_along_m() -> None:
    # Two rows of tiles go together, down the pair and then on to the next column; the fifth row is alone.
    assert drawn(5, 4, "m", 2) == [
        "0246",
        "1357",
        "8ace",
        "9bdf",
        "ghij",
    ]


def test_swizzle_size_two_along_n() -> None:
    # The same, transposed: two columns of tiles go together, the fifth column is alone.
    assert drawn(4, 5, "n", 2) == [
        "0189g",
        "23abh",
        "45cdi",
        "67efj",
    ]


def test_swizzle_size_one() -> None:
    assert drawn(2, 3, "m", 1) == ["012", "345"]
    assert drawn(2, 3, "n", 1) == ["024", "135"]


def test_a_swizzle_size_beyond_the_grid_covers_it() -> None:
    assert drawn(3, 2, "m", 16) == ["03", "14", "25"]


def test_a_serpentine_raster_reverses_every_other_strip() -> None:
    # The second pair of rows starts below the last tile of the first; within a column the direction stays.
    assert drawn(5, 4, "m", 2, snake=True) == [
        "0246",
        "1357",
        "eca8",
        "fdb9",
        "ghij",
    ]
    assert drawn(2, 4, "m", 1, snake=True) == ["0123", "7654"]
    assert drawn(3, 2, "n", 1, snake=True) == ["05", "14", "23"]


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(st.sampled_from(RASTER_AXES), st.integers(1, 20)),
    st.booleans(),
)
def test_every_tile_is_visited_once(rows: int, columns: int, order: tuple[str, int], snake: bool) -> None:
    tiles = {(row, column) for row in range(rows) for column in range(columns)}
    visited = raster_order(rows, columns, *order, snake)
    assert set(visited) == tiles
    assert len(visited) == len(tiles)


# NOTE: raster.cuh is compiled as constexpr, so that static_assert can call it; `min` must be a macro then.
_SOURCE = """
#include "common/config.cuh"
#define __forceinline__ constexpr
#define min(x, y) ((x) < (y) ? (x) : (y))
#include "common/raster.cuh"
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


def compiles(claims: list[str], raster: str, swizzle_size: int, snake: bool) -> None:
    defines = {
        **_DEFINES,
        "RASTER": RASTER_AXES.index(raster),
        "SWIZZLE_SIZE": swizzle_size,
        "RASTER_SNAKE": int(snake),
    }
    compile_text(_SOURCE % "\n".join(claims), "sm_80", tuple(defines.items()), entry="nothing")


@pytest.mark.parametrize("snake", [False, True])
@pytest.mark.parametrize("raster", RASTER_AXES)
@pytest.mark.parametrize("swizzle_size", [1, 2, 8])
def test_the_cuda_source_has_the_same_order(raster: str, swizzle_size: int, snake: bool) -> None:
    """The compiler evaluates ``raster_tile`` of raster.cuh and compares it with ours."""
    claims = [
        f"TILE({index}, {rows}, {columns}, {row}, {column})"
        for rows, columns in ((5, 4), (4, 5), (1, 7), (7, 1), (11, 3), (17, 9))
        for index, (row, column) in enumerate(raster_order(rows, columns, raster, swizzle_size, snake))
    ]
    compiles(claims, raster, swizzle_size, snake)


def test_the_cuda_source_refuses_what_differs() -> None:
    with pytest.raises(CompileError, match="static assertion failed"):
        compiles(["TILE(1, 5, 4, 0, 0)"], "m", 4, True)
