"""What is known of a compiled kernel: its resources, and its requirements on a problem, its operands and the
device. Not in trial.py, which a start from the cache skips."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Self

from tilewright.schema.codec import Bounds, Count
from tilewright.schema.problem import GemmProblem

_Alignment = Annotated[int, Bounds(1, 2**20)]


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Registers and memory of a kernel, read from the binary.

    Attributes:
        registers: registers of a thread.
        spill_bytes: bytes of local memory of a thread to which the compiler spilled.
        static_smem: bytes of static shared memory.
        dynamic_smem: bytes of dynamic shared memory.
    """

    registers: Count = 0
    spill_bytes: Count = 0
    static_smem: Count = 0
    dynamic_smem: Count = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Preconditions:
    """Requirements on operands and device; a lookup checks densely packed operands, a launch the actual ones.

    Attributes:
        align_a, align_b, align_d: bytes that must divide base addresses and row strides
            (``align_d`` holds for C and D).
        min_driver: lowest CUDA version of the driver as in ``cuDriverGetVersion``; 0 for none.
        max_extent: the largest m, n and k for the kernel's 32-bit arithmetic; 0 for no bound.
        max_k: the largest k for which one operand fits the kernel; 0 for no bound.
    """

    align_a: _Alignment = 1
    align_b: _Alignment = 1
    align_d: _Alignment = 1
    min_driver: Count = 0
    max_extent: Count = 0
    max_k: Count = 0

    @classmethod
    def assumed(cls, problem: GemmProblem) -> Self:
        """The strictest preconditions that a kernel tuned for a problem may have, if its own are unknown."""
        a, b, d = (problem.stride_alignment(operand) for operand in ("a", "b", "d"))
        return cls(a, b, d, max_k=problem.k)

    def why_too_large(self, problem: GemmProblem) -> str | None:
        """The reason the extents of ``problem`` are out of bounds, or None."""
        if self.max_extent and max(problem.m, problem.n, problem.k) > self.max_extent:
            return f"m, n and k must be at most {self.max_extent}"
        if self.max_k and problem.k > self.max_k:
            return f"k must be at most {self.max_k}: the kernel holds one operand of that k at most"
        return None

    def why_not(self, problem: GemmProblem) -> str | None:
        """The reason ``problem`` with densely packed operands does not meet them, or None."""
        reason = self.why_too_large(problem)
        if reason:
            return reason
        for operand, needed in (("a", self.align_a), ("b", self.align_b), ("d", self.align_d)):
            if problem.stride_alignment(operand) % needed:
                return f"row stride of {operand} must be a multiple of {needed} bytes"
        return None
