"""Operand tiles of wgmma in shared memory: their TMA boxes and bytes, as in ``kernels/common/wgmma.cuh``."""

from __future__ import annotations

import dataclasses

LINE_BYTES = 128


@dataclasses.dataclass(frozen=True, slots=True)
class OperandTile:
    """The tile of one operand in one stage.

    Attributes:
        extent: rows of D (operand A) or columns of D (operand B) that it covers.
        depth: extent along k.
        k_major: whether k is contiguous in memory (A stored M x K, B stored N x K).
        element: bytes of an element, 2 or 1.
        slices: CTAs of a cluster that load it for each other by multicast: a slice of its lines each, or all
            lines of every ``slices``-th k tile if slices would not be multiples of eight lines.
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
