"""Shared-memory layouts and bank conflicts: the arithmetic of ``kernels/common/smem_tile.cuh``.

A tile is rows of 16-byte chunks. The XOR ("crosswise") layout and the rotation are those of documents 000
(section 8), 001 and 004, after CUTLASS' GTC 2020 presentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LAYOUTS = ("blocked", "padded", "xor", "permuted", "plain")
BANKS = 32
BANK_BYTES = 4


def row_stride(layout: str, chunks: int) -> int:
    """Bytes between rows of ``chunks`` 16-byte chunks."""
    return chunks * 16 + (16 if layout == "padded" else 0)


def tile_bytes(layout: str, rows: int, chunks: int) -> int:
    """Bytes of a tile."""
    return rows * row_stride(layout, chunks)


def chunk_offset(layout: str, chunks: int, row: int, chunk: int) -> int:
    """Byte offset of one 16-byte chunk in a tile whose rows have ``chunks``."""
    span = math.gcd(chunks, 8)
    shift = row // (8 // span) % span
    if layout == "blocked":
        return (row // 16 * (chunks // 2) + chunk // 2) * 512 + row % 16 * 32 + chunk % 2 * 16
    if layout == "xor":
        return row * chunks * 16 + (chunk ^ shift) * 16
    if layout == "permuted":
        return row * chunks * 16 + (chunk + shift) % chunks * 16
    return row * row_stride(layout, chunks) + chunk * 16


def bank_conflicts(addresses: Sequence[int], width: int) -> int:
    """Extra shared-memory passes of one warp access.

    The hardware serves a warp in phases of 32 lanes (4-byte accesses), 16 (8 bytes) or 8 (16 bytes);
    within a phase, each bank delivers one 4-byte word a pass.

    Args:
        addresses: byte address of each of the 32 lanes.
        width: bytes that a lane accesses: 4, 8 or 16.

    Returns:
        Passes beyond one a phase, 0 for a conflict-free access.
    """
    lanes = 128 // width
    return sum(_passes(addresses[start : start + lanes], width) - 1 for start in range(0, 32, lanes))


def _passes(addresses: Sequence[int], width: int) -> int:
    words: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // BANK_BYTES, (address + width) // BANK_BYTES):
            words.setdefault(word % BANKS, set()).add(word)
    return max(len(distinct) for distinct in words.values())
