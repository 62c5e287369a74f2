"""Shared memory as TMA writes it and wgmma reads it: the arithmetic of ``kernels/common/wgmma.cuh``.

The numbers are those of document 003: with 128 x 128 x 64 tiles, A
stored M x K and B stored K x N, descriptors start 512 apart for 64 rows of A, 2 for 16 of k in A, 128
for 16 of k in B, and stages 1024; the descriptor of B has a leading offset of 512 and a stride of 64.
"""

from __future__ import annotations

import dataclasses

LINE_BYTES = 128
ATOM_BYTES = 1024  # eight lines, after which the swizzle repeats
UNIT = 16  # bytes that descriptors count in
SWIZZLE_128B = 1  # layout type of a descriptor


@dataclasses.dataclass(frozen=True, slots=True)
class OperandTile:
    """One operand's tile of one stage.

    Attributes:
        extent: rows of D (operand A) or columns of D (operand B) that it covers.
        depth: its k.
        k_major: whether k is contiguous in memory (A stored M x K, B stored N x K).
        element: bytes of an element, 2 or 1.
        slices: CTAs of a cluster that load it by multicast: a slice of its lines each, or all lines of every
            ``slices``-th k tile if slices would not be whole groups of eight lines.
    """

    extent: int
    depth: int
    k_major: bool
    element: int = 2
    slices: int = 1

    @property
    def panel(self) -> int:
        """Elements of a 128-byte line."""
        return LINE_BYTES // self.element

    @property
    def lines(self) -> int:
        """Lines of one panel."""
        return self.extent if self.k_major else self.depth

    @property
    def box(self) -> tuple[int, int]:
        """(rows, columns) of the TMA box that fills one panel, or one slice of it."""
        return (self.lines // self.slices if self.divided else self.lines, self.panel)

    @property
    def divided(self) -> bool:
        """Whether each CTA loads a slice of every k tile."""
        return self.lines % (8 * self.slices) == 0

    @property
    def panels(self) -> int:
        """Boxes of a tile."""
        return (self.depth if self.k_major else self.extent) // self.panel

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel."""
        return self.lines * LINE_BYTES

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.panels * self.panel_bytes

    @property
    def leading(self) -> int:
        """Leading offset of its descriptor, in 16-byte units; ignored by the hardware if k is major."""
        return 1 if self.k_major else self.panel_bytes // UNIT

    @property
    def stride(self) -> int:
        """Stride offset of its descriptor, in 16-byte units: from eight lines to the next eight."""
        return ATOM_BYTES // UNIT

    def step_offset(self, step: int) -> int:
        """16-byte units from the descriptor of the tile to that of k step ``step`` (32 bytes, 16 lines)."""
        if self.k_major:
            return step // 4 * (self.panel_bytes // UNIT) + step % 4 * 2
        return step * 128

    def extent_offset(self, x: int) -> int:
        """16-byte units from the descriptor of the tile to that of ``x`` along the extent.

        ``x`` is a multiple of 8, of 64 if k is not major.
        """
        return x * 8 if self.k_major else x // 64 * (self.panel_bytes // UNIT)

    def element_offset(self, x: int, k: int) -> int:
        """Byte at which TMA puts the element at ``x`` of the extent and ``k``."""
        line, column = (x, k) if self.k_major else (k, x)
        panel, within = divmod(column, self.panel)
        return panel * self.panel_bytes + swizzle_128b(line * LINE_BYTES + within * self.element)


def swizzle_128b(offset: int) -> int:
    """Where the 128-byte swizzle puts a byte: its 16-byte chunk XOR the line, in 1024 bytes each."""
    return offset ^ (offset >> 3 & 0x70)


def descriptor(address: int, leading: int, stride: int) -> int:
    """The 64-bit matrix descriptor of a 128-byte swizzled tile.

    Args:
        address: shared-memory address in bytes, a multiple of 16.
        leading, stride: offsets in units of 16 bytes.
    """
    return (address & 0x3FFFF) >> 4 | leading << 16 | stride << 32 | SWIZZLE_128B << 62


def wgmma_address(start: int, tile: OperandTile, x: int, k: int) -> int:
    """Byte that one wgmma reads for element (``x``, ``k``) of its operand, k in 0 .. 15.

    Args:
        start: byte address in its descriptor.
        tile: gives the descriptor's offsets.
        x: row of the 64 of A, or column of the N of B.
    """
    if tile.k_major:
        within = x // 8 * tile.stride * UNIT + x % 8 * LINE_BYTES + k * tile.element
    else:
        panel, column = divmod(x, tile.panel)
        groups = panel * tile.leading + k // 8 * tile.stride
        within = groups * UNIT + k % 8 * LINE_BYTES + column * 2
    return swizzle_128b(start + within)


def fragment_position(thread: int, pair: int) -> tuple[int, int]:
    """(row, first column) in the 64 x N result of a value pair of a warpgroup's thread."""
    warp, lane = divmod(thread, 32)
    return 16 * warp + lane // 4 + 8 * (pair % 2), 8 * (pair // 2) + 2 * (lane % 4)
