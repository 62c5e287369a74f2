"""The arguments of a kernel, as data that the launcher turns into values."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Operand = Literal["a", "b", "c", "d", "bias", "workspace"]
ScalarKind = Literal["int32", "int64", "float32", "float64"]
MOST_CLUSTERS = 256  # of a launch whose order of blocks is an argument


@dataclasses.dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel argument: the address of an operand, 0 where the problem has none."""

    operand: Operand
    kind: Literal["pointer"] = "pointer"


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A kernel argument: a number that follows from the problem or the call.

    ``name`` is one of m, n, k, batch; lda, ldb, ldc, ldd (row strides in elements); stride_a,
    stride_b, stride_c, stride_d (batch strides in elements); alpha, beta; and, for host kernels
    alone, thread and threads.
    """

    name: str
    kind: ScalarKind


@dataclasses.dataclass(frozen=True, slots=True)
class TensorMap:
    """A kernel argument: a 128-byte TMA descriptor of a row-major operand, passed by value.

    Attributes:
        operand: ``a``, ``b`` or ``d``; the packed copy of an operand that the plan repacks.
        box: (rows, columns) of the box in elements.
        swizzle: 0, 32, 64 or 128 bytes.
        promotion: L2 promotion of 0, 64, 128 or 256 bytes.
    """

    operand: Operand
    box: tuple[int, int]
    swizzle: int = 128
    promotion: int = 128
    kind: Literal["tensor_map"] = "tensor_map"


@dataclasses.dataclass(frozen=True, slots=True)
class BlockOrder:
    """A kernel argument: 256 bytes by value, which work each cluster of blocks takes first.

    Work that lies together goes to blocks of one GPC; see :mod:`tilewright.launch.block_order`.

    Attributes:
        entry: symbol of the kernel in the same binary that tells where blocks run. It takes the address of
            32-bit integers and writes, for each block, the number of its multiprocessor.
    """

    entry: str
    kind: Literal["block_order"] = "block_order"


Argument = Pointer | Scalar | TensorMap | BlockOrder


def argument(data: dict[str, Any]) -> Argument:
    """The inverse of ``dataclasses.asdict``."""
    kind = data["kind"]
    if kind == "pointer":
        return Pointer(data["operand"])
    if kind == "tensor_map":
        rows, columns = data["box"]
        return TensorMap(data["operand"], (rows, columns), data["swizzle"], data["promotion"])
    if kind == "block_order":
        return BlockOrder(data["entry"])
    return Scalar(data["name"], kind)
