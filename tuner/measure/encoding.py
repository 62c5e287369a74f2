"""Conversion between values and storage, the bits that a kernel reads and writes.

Works on NumPy and CuPy arrays; ``xp`` is the array module. Types that neither module computes with are stored
as bit patterns: bfloat16 as uint16, the 8-bit floats as uint8. tfloat32 is stored as float32 whose low 13
bits are zero, so that kernels need not round it. Types of fewer than 8 bits are packed into uint8 along the
last axis, the first element in the low bits.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.schema.problem import DType

_STORAGE = {
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "uint16",
    DType.FLOAT32: "float32",
    DType.FLOAT64: "float64",
    DType.TFLOAT32: "float32",
    DType.FLOAT8_E4M3FN: "uint8",
    DType.FLOAT8_E5M2: "uint8",
    DType.INT8: "int8",
    DType.UINT8: "uint8",
    DType.INT4: "uint8",
    DType.UINT4: "uint8",
    DType.UINT1: "uint8",
    DType.SIGN1: "uint8",
    DType.INT32: "int32",
}
_BOUNDS = {
    DType.INT8: (-128, 127),
    DType.UINT8: (0, 255),
    DType.INT4: (-8, 7),
    DType.UINT4: (0, 15),
    DType.UINT1: (0, 1),
    DType.INT32: (-(2**31), 2**31 - 1),
}
_SMALLEST_NORMAL = {DType.FLOAT8_E4M3FN: 2.0**-6, DType.FLOAT8_E5M2: 2.0**-14}
_MANTISSA = {DType.FLOAT8_E4M3FN: 3, DType.FLOAT8_E5M2: 2}
_E4M3_MOST, _E5M2_MOST = 448.0, 57344.0


def storage_type(dtype: DType) -> str:
    """Name of the NumPy type that stores ``dtype``."""
    return _STORAGE[dtype]


def encode(xp: Any, values: Any, dtype: DType) -> Any:
    """The storage array of real ``values`` rounded to ``dtype``, to nearest even.

    Values that are too large become infinity, NaN in float8_e4m3fn, which has no infinity, or the nearest
    integer of an integer type. Integer types hold no NaN. sign1 keeps the sign only; 0 is positive.

    Raises:
        ValueError: the last axis does not fill the bytes of a packed type.
    """
    if dtype is DType.BFLOAT16:
        return _encode_bfloat16(xp, values)
    if dtype is DType.TFLOAT32:
        return _rounded(xp, values, 13)
    if dtype in _MANTISSA:
        return _encode_float8(xp, values, dtype)
    if dtype is DType.SIGN1:
        return _pack(xp, values < 0, dtype)
    if dtype.is_integer:
        whole = xp.clip(xp.rint(values.astype("float64")), *_BOUNDS[dtype])
        return _pack(xp, whole, dtype) if dtype.packing > 1 else whole.astype(_STORAGE[dtype])
    return values.astype(_STORAGE[dtype])


def decode(stored: Any, dtype: DType) -> Any:
    """The values of a storage array, as float32 (float64 for float64 and int32)."""
    if dtype is DType.BFLOAT16:
        return (stored.astype("uint32") << 16).view("float32").reshape(stored.shape)
    if dtype is DType.FLOAT8_E5M2:
        return (stored.astype("uint16") << 8).view("float16").astype("float32")
    if dtype is DType.FLOAT8_E4M3FN:
        return _decode_e4m3(stored)
    if dtype.packing > 1:
        return _unpacked(stored, dtype).astype("float32")
    return stored.astype("float64" if dtype in (DType.FLOAT64, DType.INT32) else "float32")


def _pack(xp: Any, values: Any, dtype: DType) -> Any:
    """The low bits of whole numbers, ``dtype.packing`` neighbours in each byte."""
    bits, packing = dtype.bits, dtype.packing
    if values.shape[-1] % packing:
        raise ValueError(f"{values.shape[-1]} elements of {dtype} do not fill whole bytes")
    fields = xp.ascontiguousarray(values).astype("int8").view("uint8") & ((1 << bits) - 1)
    packed = fields[..., ::packing]
    for place in range(1, packing):
        packed = packed | (fields[..., place::packing] << (place * bits))
    return xp.ascontiguousarray(packed)


def _unpacked(stored: Any, dtype: DType) -> Any:
    """The values of packed bytes, as int8."""
    bits, packing = dtype.bits, dtype.packing
    fields = stored.repeat(packing, axis=stored.ndim - 1)
    for place in range(packing):
        fields[..., place::packing] >>= place * bits
    fields &= (1 << bits) - 1
    if dtype is DType.SIGN1:
        return 1 - 2 * fields.astype("int8")
    signed = fields.astype("int8")
    return signed - ((signed >> 3) << 4) if dtype is DType.INT4 else signed


def _encode_bfloat16(xp: Any, values: Any) -> Any:
    """In few passes: B of a large weight is encoded for every row of a ladder."""
    values = xp.ascontiguousarray(values, dtype="float32")
    bits = values.view("uint32")
    halves = bits >> 16
    halves &= 1
    halves += 0x7FFF
    halves += bits
    halves >>= 16
    return xp.where(xp.isnan(values), xp.uint16(0x7FC0), halves.astype("uint16"))


def _rounded(xp: Any, values: Any, drop: int) -> Any:
    """The values as float32 with the low ``drop`` bits of the mantissa rounded away; NaN stays NaN."""
    values = xp.ascontiguousarray(values, dtype="float32")
    bits = values.view("uint32")
    up = bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)
    return xp.where(xp.isnan(values), values, ((up >> drop) << drop).view("float32"))


def _encode_float8(xp: Any, values: Any, dtype: DType) -> Any:
    """Encode by way of float16, whose exponent has five bits like that of e5m2; e4m3 has four."""
    values = xp.ascontiguousarray(values, dtype="float32")
    smallest, mantissa = _SMALLEST_NORMAL[dtype], _MANTISSA[dtype]
    step = smallest * 2.0**-mantissa
    subnormal = xp.rint(xp.clip(values, -smallest, smallest) / step) * step
    near = xp.where(xp.abs(values) < smallest, subnormal, _rounded(xp, values, 23 - mantissa))
    if dtype is DType.FLOAT8_E5M2:
        near = xp.where(xp.abs(near) > _E5M2_MOST, xp.copysign(math.inf, near), near)
        return (near.astype("float16").view("uint16") >> 8).astype("uint8")
    bits = (xp.clip(near, -_E4M3_MOST, _E4M3_MOST) / 256).astype("float16").view("uint16")
    sign = (bits >> 8) & 0x80
    # NOTE: written so that a NaN is not within bounds either.
    packed = xp.where(xp.abs(near) <= _E4M3_MOST, sign | ((bits >> 7) & 0x7F), sign | 0x7F)
    return packed.astype("uint8")


def _decode_e4m3(stored: Any) -> Any:
    bits = stored.astype("uint16")
    values = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).view("float16").astype("float32") * 256
    values[(bits & 0x7F) == 0x7F] = math.nan
    return values
