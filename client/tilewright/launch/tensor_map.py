"""TMA descriptors: a 128-byte ``CUtensorMap`` for a row-major operand."""

from __future__ import annotations

import ctypes

from tilewright.artifact import Operand, TensorMap
from tilewright.errors import PreconditionFailed
from tilewright.launch import driver
from tilewright.schema.problem import DType, GemmProblem

# CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion of cuda.h.
_TYPES = {
    DType.FLOAT16: 6,
    DType.BFLOAT16: 9,
    DType.FLOAT32: 7,
    DType.TFLOAT32: 7,
    DType.FLOAT64: 8,
    DType.FLOAT8_E4M3FN: 0,
    DType.FLOAT8_E5M2: 0,
    DType.INT8: 0,
    DType.UINT8: 0,
    DType.INT32: 3,
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_BYTES = 128


class Descriptor:
    """A 64-byte-aligned 128-byte buffer that holds one tensor map."""

    def __init__(self) -> None:
        self._raw = ctypes.create_string_buffer(_BYTES + 64)
        start = ctypes.addressof(self._raw)
        self.address = start + (-start) % 64


def encode(item: TensorMap, problem: GemmProblem, address: int, row_stride: int) -> Descriptor:
    """Describe an operand as a 3-D tensor (columns, rows, batch).

    Args:
        item: box, swizzle and promotion.
        problem: the problem, for extents and element type.
        address: address of the first element, 16-byte aligned.
        row_stride: bytes between rows; a multiple of 16.

    Raises:
        PreconditionFailed: the driver refused the tensor map.
    """
    (rows, columns), dtype = _stored(problem, item.operand)
    descriptor = Descriptor()
    extents = (ctypes.c_uint64 * 3)(columns, rows, problem.batch)
    strides = (ctypes.c_uint64 * 2)(row_stride, row_stride * rows)
    box = (ctypes.c_uint32 * 3)(item.box[1], item.box[0], 1)
    ones = (ctypes.c_uint32 * 3)(1, 1, 1)
    status = driver.libcuda().cuTensorMapEncodeTiled(
        ctypes.c_void_p(descriptor.address),
        ctypes.c_int(_TYPES[dtype]),
        ctypes.c_uint32(3),
        ctypes.c_void_p(address),
        extents,
        strides,
        box,
        ones,
        ctypes.c_int(0),
        ctypes.c_int(_SWIZZLES[item.swizzle]),
        ctypes.c_int(_PROMOTIONS[item.promotion]),
        ctypes.c_int(0),
    )
    if status:
        raise PreconditionFailed(
            f"no tensor map for {item.operand} ({rows} x {columns} {dtype}, row stride {row_stride} bytes, "
            f"box {item.box}, swizzle {item.swizzle}): driver status {status}; give a dense operand",
            code=status,
        )
    return descriptor


def _stored(problem: GemmProblem, operand: Operand) -> tuple[tuple[int, int], DType]:
    """Stored shape and element type of one matrix."""
    if operand in ("c", "d"):
        return (problem.m, problem.n), problem.out
    return problem.a_shape if operand == "a" else problem.b_shape, problem.dtype
