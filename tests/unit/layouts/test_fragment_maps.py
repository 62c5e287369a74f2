"""The register fragments of mma.sync against the figures of the PTX ISA."""

from __future__ import annotations

from collections import Counter

import pytest
from fragments import ACCUMULATOR_ELEMENTS, a_elements, b_elements, ldmatrix_element

from benchmarks.ladder.bank_conflicts import LANES, a_element, accumulator_element, b_element


# Read off the figures: row 0 of A shows T0:{a0,a1} T1:{a0,a1} T2:{a0,a1} T3:{a0,a1}, row 1 starts with T4,
# row 7 ends with T31, and row 8 starts again with T0:{a2,a3}. In m16n8k16 columns 8 .. 15 repeat this with
# {a4,a5} above and {a6,a7} below.
@pytest.mark.parametrize(
    ("lane", "i", "expected"),
    [
        (0, 0, (0, 0)), (0, 1, (0, 1)), (1, 0, (0, 2)), (3, 1, (0, 7)), (4, 0, (1, 0)), (31, 1, (7, 7)),
        (0, 2, (8, 0)), (0, 3, (8, 1)), (13, 2, (11, 2)), (31, 3, (15, 7)),
        (0, 4, (0, 8)), (5, 5, (1, 11)), (0, 6, (8, 8)), (31, 7, (15, 15)),
    ],
)  # fmt: skip
def test_a(lane: int, i: int, expected: tuple[int, int]) -> None:
    assert a_element(lane, i) == expected


# B is K x 8: column 0 shows, downwards, T0:{b0,b1} T1:{b0,b1} T2:{b0,b1} T3:{b0,b1}, then {b2,b3} of the same
# lanes for k 8 .. 15; column 1 starts with T4, column 7 with T28.
@pytest.mark.parametrize(
    ("lane", "i", "expected"),
    [
        (0, 0, (0, 0)), (0, 1, (1, 0)), (3, 1, (7, 0)), (4, 0, (0, 1)), (28, 0, (0, 7)), (30, 1, (5, 7)),
        (0, 2, (8, 0)), (6, 3, (13, 1)), (31, 3, (15, 7)),
    ],
)  # fmt: skip
def test_b(lane: int, i: int, expected: tuple[int, int]) -> None:
    assert b_element(lane, i) == expected


# Row 0 of C and D shows T0:{c0,c1} .. T3:{c0,c1}, row 8 T0:{c2,c3}.
@pytest.mark.parametrize(
    ("lane", "i", "expected"),
    [(0, 0, (0, 0)), (2, 1, (0, 5)), (4, 0, (1, 0)), (0, 2, (8, 0)), (9, 3, (10, 3)), (31, 3, (15, 7))],
)
def test_accumulators(lane: int, i: int, expected: tuple[int, int]) -> None:
    assert accumulator_element(lane, i) == expected


@pytest.mark.parametrize("mma_k", [8, 16])
def test_every_element_has_one_owner(mma_k: int) -> None:
    a = Counter(a_element(lane, i) for lane in range(LANES) for i in range(a_elements(mma_k)))
    b = Counter(b_element(lane, i) for lane in range(LANES) for i in range(b_elements(mma_k)))
    assert a == Counter((row, k) for row in range(16) for k in range(mma_k))
    assert b == Counter((k, column) for k in range(mma_k) for column in range(8))


def test_every_accumulator_has_one_owner() -> None:
    owned = Counter(
        accumulator_element(lane, i) for lane in range(LANES) for i in range(ACCUMULATOR_ELEMENTS)
    )
    assert owned == Counter((row, column) for row in range(16) for column in range(8))


def test_registers_by_shape() -> None:
    # 16 x 8 halves of A over 32 lanes are 4 a lane, two registers; twice that for k16. B is half of A.
    assert [a_elements(8), a_elements(16), b_elements(8), b_elements(16)] == [4, 8, 2, 4]


def test_k16_is_two_k8_side_by_side() -> None:
    """Why MMA_K = 8 can take the registers loaded for k16: a[0], a[1], b[0], then a[2], a[3], b[1]."""
    for lane in range(LANES):
        for i in range(a_elements(8)):
            row, k = a_element(lane, i)
            assert a_element(lane, i + 4) == (row, k + 8)
        for i in range(b_elements(8)):
            k, column = b_element(lane, i)
            assert b_element(lane, i + 2) == (k + 8, column)


def test_ldmatrix_gives_the_a_fragment() -> None:
    """``load_a``: lane l addresses row l % 16, chunk l / 16; matrix j takes the addresses of lanes
    8j .. 8j + 7 and fills register j."""
    for lane in range(LANES):
        for i in range(a_elements(16)):
            row, column = ldmatrix_element(lane, i % 2)
            giver = i // 2 * 8 + row
            assert a_element(lane, i) == (giver % 16, giver // 16 * 8 + column)


def test_ldmatrix_gives_the_b_fragment_of_two_column_tiles() -> None:
    """``load_b`` of a B stored N x K: lane l addresses column l / 16 * 8 + l % 8 and k half l / 8 % 2."""
    for lane in range(LANES):
        for i in range(8):
            row, within = ldmatrix_element(lane, i % 2)
            giver = i // 2 * 8 + row
            k, column = b_element(lane, i % 4)
            assert (k, column + i // 4 * 8) == (giver // 8 % 2 * 8 + within, giver // 16 * 8 + giver % 8)


def test_transposing_ldmatrix_gives_the_b_fragment() -> None:
    """``load_b`` of a B stored K x N: lane l addresses row l / 8 % 2 * 8 + l % 8 of k; .trans swaps
    row and column of each matrix."""
    for lane in range(LANES):
        for i in range(b_elements(16)):
            column, row = ldmatrix_element(lane, i % 2)
            giver = i // 2 * 8 + row
            assert b_element(lane, i) == (giver // 8 % 2 * 8 + giver % 8, column)


def test_transposing_ldmatrix_gives_the_a_fragment() -> None:
    """``load_a`` of an A stored K x M: lane l addresses row l / 16 * 8 + l % 8 of k, chunk l / 8 % 2 of m."""
    for lane in range(LANES):
        for i in range(a_elements(16)):
            m, k = ldmatrix_element(lane, i % 2)
            giver = i // 2 * 8
            k_row = giver // 16 * 8 + k
            assert a_element(lane, i) == (giver // 8 % 2 * 8 + m, k_row)
