"""Geometric means of the ratios over groups of shapes, and the roof above each shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.shapes import SEED_GROUP
from benchmarks.suite.files import Row
from tilewright.schema.problem import DType

# Operations of the tensor cores of one SM in a clock, times the bytes of an operand's element.
_OPERATIONS = {"sm_80": 4096, "sm_90": 8192}
_TENSOR_TYPES = (
    DType.FLOAT16, DType.BFLOAT16, DType.TFLOAT32, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.INT8,
    DType.UINT8,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """A group of shapes that cuBLASLt computes too.

    Attributes:
        name: of the group.
        shapes: how many there are.
        ratio: geometric mean of the ratios.
        worst: the shape with the lowest one.
        wins, losses: how many intervals lie above and below 1.
    """

    name: str
    shapes: int
    ratio: float
    worst: Row
    wins: int
    losses: int


def means(rows: Sequence[Row]) -> list[Mean]:
    """The aligned shapes, all shapes, then each group.

    Aligned are those whose row strides are multiples of 16 bytes, as the copies by tensor map need
    them. The case of document 003 counts for itself only: its accumulate type is another one.
    """
    compared = [row for row in rows if row.ratio_vs_cublaslt_best is not None]
    suite = [row for row in compared if row.group != SEED_GROUP]
    found = {"aligned": [row for row in suite if aligned(row)], "all": suite}
    for row in compared:
        found.setdefault(row.group, []).append(row)
    return [_mean(name, group) for name, group in found.items() if group]


def aligned(row: Row) -> bool:
    """Every row stride is a multiple of 16 bytes."""
    return all(row.problem.stride_alignment(operand) == 16 for operand in "abd")


def roof(row: Row, device: dict[str, Any]) -> float | None:
    """The TFLOP/s that a shape cannot exceed, at the clock it ran at; None if the device's limits are
    not known.

    It is the lower one of what the tensor cores compute and what the memory feeds, each of A, B and D
    moved once.
    """
    limits = [compute_roof(row, device), intensity(row) * device["memory_gbps"] / 1e3]
    known = [limit for limit in limits if limit]
    return min(known) if len(known) == len(limits) else None


def compute_roof(row: Row, device: dict[str, Any]) -> float | None:
    """TFLOP/s of all tensor cores at the clock of the race; None if they are not known."""
    dtype, clock = DType(row.dtype), row.sm_mhz or device["clock_mhz"]
    if dtype not in _TENSOR_TYPES or device["arch"] not in _OPERATIONS:
        return None
    return float(device["sm_count"] * _OPERATIONS[device["arch"]] / dtype.size * clock) / 1e6


def intensity(row: Row) -> float:
    """Operations a byte, each of A, B and D moved once."""
    return row.problem.flops / row.problem.total_bytes


def _mean(name: str, rows: Sequence[Row]) -> Mean:
    ratios = list(_ratios(rows))
    return Mean(
        name=name,
        shapes=len(rows),
        ratio=math.exp(sum(map(math.log, ratios)) / len(ratios)),
        worst=rows[ratios.index(min(ratios))],
        wins=sum(row.ci_low is not None and row.ci_low > 1 for row in rows),
        losses=sum(row.ci_high is not None and row.ci_high < 1 for row in rows),
    )


def _ratios(rows: Sequence[Row]) -> Iterator[float]:
    for row in rows:
        assert row.ratio_vs_cublaslt_best is not None
        yield row.ratio_vs_cublaslt_best
