"""Where TMA writes an operand tile and wgmma reads it: the arithmetic of ``kernels/common/wgmma.cuh``.

The numbers are those of document 003: with 128 x 128 x 64 tiles, A stored M x K and B stored K x N,
descriptors start 512 apart for 64 rows of A, 2 for 16 of k in A, 128 for 16 of k in B, and stages 1024; the
descriptor of B has a leading offset of 512 and a stride of 64.
"""

from __future__ import annotations

from kernels.common.wgmma import LINE_BYTES, OperandTile

ATOM_BYTES = 1024  # eight lines, after which the swizzle repeats
DESCRIPTOR_UNIT = 16  # bytes that descriptors count in
SWIZZLE_128B = 1  # layout type of a descriptor


class SwizzledTile(OperandTile):
    """An operand tile with the offsets of its elements and of its descriptors."""

    __slots__ = ()

    @property
    def leading(self) -> int:
        """Leading offset of its descriptor, in 16-byte units; ignored by the hardware if k is major."""
        return 1 if self.k_major else self.panel_bytes // DESCRIPTOR_UNIT

    @property
    def stride(self) -> int:
        """Stride offset of its descriptor, in 16-byte units: from eight lines to the next eight."""
        return ATOM_BYTES // DESCRIPTOR_UNIT

    def step_offset(self, step: int) -> int:
        """16-byte units from the descriptor of the tile to that of k step ``step`` (32 bytes, 16 lines)."""
        if self.k_major:
            return step // 4 * (self.panel_bytes // DESCRIPTOR_UNIT) + step % 4 * 2
        return step * 128

    def extent_offset(self, x: int) -> int:
        """16-byte units from the descriptor of the tile to that of ``x`` along the extent.

        ``x`` is a multiple of 8, of 64 if k is not major.
        """
        return x * 8 if self.k_major else x // 64 * (self.panel_bytes // DESCRIPTOR_UNIT)

    def element_offset(self, x: int, k: int) -> int:
        """The byte offset at which TMA writes the element at ``x`` of the extent and ``k``."""
        line, column = (x, k) if self.k_major else (k, x)
        panel, within = divmod(column, self.panel)
        return panel * self.panel_bytes + swizzle_128b(line * LINE_BYTES + within * self.element)


def swizzle_128b(offset: int) -> int:
    """The offset of a byte after the 128-byte swizzle: 16-byte chunk XOR line, within each 1024 bytes."""
    return offset ^ (offset >> 3 & 0x70)


def descriptor(address: int, leading: int, stride: int) -> int:
    """The 64-bit matrix descriptor of a 128-byte swizzled tile.

    Args:
        address: shared-memory address in bytes, a multiple of 16.
        leading, stride: offsets in units of 16 bytes.
    """
    return (address & 0x3FFFF) >> 4 | leading << 16 | stride << 32 | SWIZZLE_128B << 62


def wgmma_address(start: int, tile: SwizzledTile, x: int, k: int) -> int:
    """The byte that one wgmma reads for element (``x``, ``k``) of its operand, k in 0 .. 15.

    Args:
        start: byte address in the descriptor.
        tile: the tile, whose offsets are those of the descriptor.
        x: row of the 64 of A, or column of the N of B.
    """
    if tile.k_major:
        within = x // 8 * tile.stride * DESCRIPTOR_UNIT + x % 8 * LINE_BYTES + k * tile.element
    else:
        panel, column = divmod(x, tile.panel)
        groups = panel * tile.leading + k // 8 * tile.stride
        within = groups * DESCRIPTOR_UNIT + k % 8 * LINE_BYTES + column * 2
    return swizzle_128b(start + within)


def fragment_position(thread: int, pair: int) -> tuple[int, int]:
    """(row, first column) of pair ``pair`` of a warpgroup's thread in the 64 x N result."""
    warp, lane = divmod(thread, 32)
    return 16 * warp + lane // 4 + 8 * (pair % 2), 8 * (pair // 2) + 2 * (lane % 4)
