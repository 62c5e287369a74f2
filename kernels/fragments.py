"""Which lane of a warp holds which matrix element in mma.sync: the maps of ``csrc/tile/fragments.cuh``
and ``csrc/tile/accumulators.cuh``.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8" and "... mma.m16n8k16" with 16-bit inputs, and those of
"mma.m16n8k32", "mma.m16n8k64" and "mma.m16n8k256" with 8-, 4- and 1-bit integers. Element ``i`` of a fragment
lies in its 32-bit register ``i // (32 / bits)``, from the low bits up. With g = lane / 4 and t = lane % 4,
a register holds the neighbours in bytes 4t .. 4t + 3 of row (A, C, D) or column (B) g of 16 bytes of k.
"""

from __future__ import annotations

LANES = 32
ACCUMULATOR_ELEMENTS = 4


def a_elements(mma_k: int) -> int:
    """Elements of A that a lane holds: 4 for m16n8k8, 8 for m16n8k16, 32 for m16n8k64, 128 for m16n8k256."""
    return 16 * mma_k // LANES


def b_elements(mma_k: int) -> int:
    """Elements of B that a lane holds: half of those of A."""
    return 8 * mma_k // LANES


def a_element(lane: int, i: int, bits: int = 16) -> tuple[int, int]:
    """(row, k) of element ``i`` of the A fragment; m16n8k8 has the first two registers only.

    Registers 0 and 1 hold rows g and g + 8 of the first 16 bytes of k, registers 2 and 3 those of the second.
    """
    register, k = _place(lane, i, bits)
    return lane // 4 + register % 2 * 8, k + register // 2 * (128 // bits)


def b_element(lane: int, i: int, bits: int = 16) -> tuple[int, int]:
    """(k, column) of element ``i`` of the B fragment; m16n8k8 has the first register only."""
    register, k = _place(lane, i, bits)
    return k + register * (128 // bits), lane // 4


def _place(lane: int, i: int, bits: int) -> tuple[int, int]:
    """The register of element ``i``, and its k within 16 bytes."""
    held = 32 // bits
    return i // held, lane % 4 * held + i % held


def accumulator_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element ``i`` of C and D, the same for all shapes."""
    return lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2


def ldmatrix_element(lane: int, half: int) -> tuple[int, int]:
    """(row, column) of the element that ldmatrix puts into a half of the lane's register, for each
    8 x 8 matrix: the row is that of the address which lane ``row`` gave."""
    return lane // 4, lane % 4 * 2 + half
