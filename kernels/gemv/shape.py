"""``GemvShape``, a problem in terms of weights and activations.

The *weights* are the operand with many rows, read once; the *activations* are the one with at most 16 rows.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from kernels.common import cuda
from tilewright.schema.problem import DType, GemmProblem

MAX_ACTIVATION_ROWS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class GemvShape:
    """A problem in terms of weights and activations.

    Attributes:
        weights: the operand with many rows.
        k_major: whether the rows of the weights run along k.
        weight_rows: extent of D along the rows of the weights.
        activation_rows: extent of a tile along the other axis: a power of two, at most 16.
        dtype: element type of both operands.
    """

    weights: Literal["a", "b"]
    k_major: bool
    weight_rows: int
    activation_rows: int
    dtype: DType

    @classmethod
    def of(cls, problem: GemmProblem) -> GemvShape:
        """The shape of a problem: the longer operand is the weights, B if both are equally long."""
        few = min(problem.m, problem.n, MAX_ACTIVATION_ROWS)
        rows = 1 << (few - 1).bit_length()
        if cuda.weights(problem) == "a":
            return cls("a", not problem.layout.a_transposed, problem.m, rows, problem.dtype)
        return cls("b", problem.layout.b_transposed, problem.n, rows, problem.dtype)

    @property
    def activations(self) -> Literal["a", "b"]:
        """The operand with few rows."""
        return "b" if self.weights == "a" else "a"

    @property
    def vector(self) -> int:
        """Elements of a 16-byte vector."""
        return 16 // self.dtype.size
