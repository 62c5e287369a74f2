"""Launches before and after the kernel's own."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tilewright.problem import GemmProblem


@dataclasses.dataclass(frozen=True, slots=True)
class Repack:
    """A launch before the kernel's own that copies an operand to the workspace, with rows TMA can describe.

    Its kernel takes (source, target, rows, bytes of a row, source stride, target stride, source stride of a
    batch, target stride of a batch), strides in bytes, and copies ``rows`` rows a block.

    Attributes:
        operand: ``a`` or ``b``.
        entry: symbol of the copying kernel.
        block: its threads.
        rows: rows that one block copies.
    """

    operand: Literal["a", "b"]
    entry: str
    block: tuple[int, int, int]
    rows: int

    def row_bytes(self, problem: GemmProblem) -> int:
        """Bytes from row to row of the copy: a multiple of 128."""
        return -(-self._shape(problem)[1] * problem.dtype.size // 128) * 128

    def bytes(self, problem: GemmProblem) -> int:
        """Bytes of the copy."""
        return problem.batch * self._shape(problem)[0] * self.row_bytes(problem)

    def blocks(self, problem: GemmProblem) -> tuple[int, int, int]:
        """Its launch grid."""
        return -(-self._shape(problem)[0] // self.rows), 1, problem.batch

    def _shape(self, problem: GemmProblem) -> tuple[int, int]:
        return problem.a_shape if self.operand == "a" else problem.b_shape


@dataclasses.dataclass(frozen=True, slots=True)
class Finish:
    """A launch after the kernel's own that makes D of what it left in the workspace.

    Its kernel takes the pointers and scalars of the plan, in their order; a block makes
    ``rows`` x ``columns`` of D, and those along n come first.

    Attributes:
        entry: symbol of the kernel.
        block: its threads.
        rows, columns: extents of D that one block makes.
    """

    entry: str
    block: tuple[int, int, int]
    rows: int
    columns: int

    def blocks(self, problem: GemmProblem) -> tuple[int, int, int]:
        """Its launch grid."""
        return -(-problem.n // self.columns) * -(-problem.m // self.rows), 1, problem.batch
