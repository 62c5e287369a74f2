"""What a lane holds of the fragments of mma.sync, and what ldmatrix gives it."""

from __future__ import annotations

LANES = 32
ACCUMULATOR_ELEMENTS = 4


def a_elements(mma_k: int) -> int:
    """Elements of A that a lane holds: 4 for m16n8k8, 8 for m16n8k16, 32 for m16n8k64, 128 for m16n8k256."""
    return 16 * mma_k // LANES


def b_elements(mma_k: int) -> int:
    """Elements of B that a lane holds: half of those of A."""
    return 8 * mma_k // LANES


def ldmatrix_element(lane: int, half: int) -> tuple[int, int]:
    """(row, column) of the element that ldmatrix puts into a half of the lane's register, for each
    8 x 8 matrix: the row is that of the address which lane ``row`` gave."""
    return lane // 4, lane % 4 * 2 + half
