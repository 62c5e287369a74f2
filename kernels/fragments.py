"""Which lane of a warp holds which matrix element in mma.sync: the maps of ``csrc/tile/fragments.cuh``
and ``csrc/tile/accumulators.cuh``.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8" and "... mma.m16n8k16" with 16-bit inputs. Element
``i`` of a fragment is half ``i % 2`` of its 32-bit register ``i // 2``. With g = lane / 4 and
t = lane % 4, every register holds two neighbours of row (A, C, D) or column (B) g of an 8 x 8 matrix.
"""

from __future__ import annotations

LANES = 32
ACCUMULATOR_ELEMENTS = 4


def a_elements(mma_k: int) -> int:
    """Elements of A that a lane holds: 4 for m16n8k8, 8 for m16n8k16."""
    return 16 * mma_k // LANES


def b_elements(mma_k: int) -> int:
    """Elements of B that a lane holds: 2 for m16n8k8, 4 for m16n8k16."""
    return 8 * mma_k // LANES


def a_element(lane: int, i: int) -> tuple[int, int]:
    """(row, k) of element ``i`` of the A fragment; elements 4 .. 7 exist in m16n8k16 only.

    Registers 0 and 1 hold rows g and g + 8 of k 0 .. 7, registers 2 and 3 the same rows of k 8 .. 15.
    """
    return lane // 4 + i // 2 % 2 * 8, lane % 4 * 2 + i % 2 + i // 4 * 8


def b_element(lane: int, i: int) -> tuple[int, int]:
    """(k, column) of element ``i`` of the B fragment; elements 2 and 3 exist in m16n8k16 only."""
    return lane % 4 * 2 + i % 2 + i // 2 * 8, lane // 4


def accumulator_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element ``i`` of C and D, the same for both shapes."""
    return lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2


def ldmatrix_element(lane: int, half: int) -> tuple[int, int]:
    """(row, column) of the element that ldmatrix puts into a half of the lane's register, for each
    8 x 8 matrix: the row is that of the address which lane ``row`` gave."""
    return lane // 4, lane % 4 * 2 + half
