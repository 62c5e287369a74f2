"""The order of tiles: hand-drawn walks, permutations, and the formula of the CUDA sources."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.common.raster import AXES, RASTERS, hilbert, raster_tile
from kernels.compiler.nvrtc import compile_text
from kernels.compiler.spec import CompileError


def walk(
    rows: int, columns: int, raster: str, swizzle_size: int, snake: bool = False
) -> list[tuple[int, int]]:
    return [
        raster_tile(index, (rows, columns), raster, swizzle_size, snake) for index in range(rows * columns)
    ]


def drawn(rows: int, columns: int, raster: str, swizzle_size: int, snake: bool = False) -> list[str]:
    """The grid of tiles with each tile's block index as one digit."""
    order = {tile: index for index, tile in enumerate(walk(rows, columns, raster, swizzle_size, snake))}
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
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


def test_a_snake_comes_back_along_every_other_band() -> None:
    # The second pair of rows starts below the last tile of the first; within a column nothing turns.
    assert drawn(5, 4, "m", 2, snake=True) == [
        "0246",
        "1357",
        "eca8",
        "fdb9",
        "ghij",
    ]
    assert drawn(2, 4, "m", 1, snake=True) == ["0123", "7654"]
    assert drawn(3, 2, "n", 1, snake=True) == ["05", "14", "23"]


def test_hilbert_in_squares_of_four() -> None:
    # Each quadrant of four is walked whole before the next; the two columns beyond the square and the last
    # row, where no whole square fits, are walked like bands along m.
    assert drawn(5, 6, "hilbert", 4) == [
        "0345gk",
        "1276hl",
        "ed89im",
        "fcbajn",
        "opqrst",
    ]
    assert drawn(5, 6, "hilbert", 1) == drawn(5, 6, "m", 1)
    assert drawn(3, 6, "hilbert", 4) == drawn(3, 6, "m", 4)


def test_a_hilbert_band_turns_round_whole() -> None:
    # Eight rows in two bands of one square each: the second is the mirror image of the first, 16 later.
    forward, back = walk(8, 4, "hilbert", 4)[:16], walk(8, 4, "hilbert", 4, snake=True)[16:]
    assert back == [(row + 4, 3 - column) for row, column in forward]


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16])
def test_a_hilbert_curve_steps_to_a_neighbour(side: int) -> None:
    places = [hilbert(side, index) for index in range(side * side)]
    assert sorted(places) == [(x, y) for x in range(side) for y in range(side)]
    assert places[0] == (0, 0)
    for (x, y), (x2, y2) in itertools.pairwise(places):
        assert abs(x - x2) + abs(y - y2) == 1


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.one_of(
        st.tuples(st.sampled_from(AXES), st.integers(1, 20)),
        st.tuples(st.just("hilbert"), st.sampled_from([1, 2, 4, 8, 16])),
    ),
    st.booleans(),
)
def test_every_tile_is_visited_once(rows: int, columns: int, order: tuple[str, int], snake: bool) -> None:
    tiles = {(row, column) for row in range(rows) for column in range(columns)}
    visited = walk(rows, columns, *order, snake)
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
        "RASTER": RASTERS.index(raster),
        "SWIZZLE_SIZE": swizzle_size,
        "RASTER_SNAKE": int(snake),
    }
    compile_text(_SOURCE % "\n".join(claims), "sm_80", tuple(defines.items()), entry="nothing")


@pytest.mark.parametrize("snake", [False, True])
@pytest.mark.parametrize("raster", RASTERS)
@pytest.mark.parametrize("swizzle_size", [1, 2, 8])
def test_the_cuda_source_walks_the_same_way(raster: str, swizzle_size: int, snake: bool) -> None:
    """The compiler evaluates ``raster_tile`` of raster.cuh and compares it with ours."""
    claims = [
        f"TILE({index}, {rows}, {columns}, {row}, {column})"
        for rows, columns in ((5, 4), (4, 5), (1, 7), (7, 1), (11, 3), (17, 9))
        for index, (row, column) in enumerate(walk(rows, columns, raster, swizzle_size, snake))
    ]
    compiles(claims, raster, swizzle_size, snake)


def test_the_cuda_source_refuses_what_differs() -> None:
    with pytest.raises(CompileError, match="static assertion failed"):
        compiles(["TILE(1, 5, 4, 0, 0)"], "hilbert", 4, True)
    with pytest.raises(CompileError, match="squares of a power of two"):
        compiles([], "hilbert", 3, False)
