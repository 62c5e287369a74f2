"""Values and storage: numbers on one side, the bits a kernel reads and writes on the other.

NumPy and CuPy alike; ``xp`` is the array module where one has to be named. bfloat16, which
neither computes with, is kept as uint16 bit patterns.
"""

from __future__ import annotations

from typing import Any

from tilewright.problem import DType

_STORAGE = {
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "uint16",
    DType.FLOAT32: "float32",
    DType.FLOAT64: "float64",
}


def storage_type(dtype: DType) -> str:
    """Name of the NumPy type that holds ``dtype``."""
    return _STORAGE[dtype]


def encode(xp: Any, values: Any, dtype: DType) -> Any:
    """Round real ``values`` to ``dtype``, to nearest even, and return the storage array."""
    if dtype is not DType.BFLOAT16:
        return values.astype(_STORAGE[dtype])
    bits = xp.ascontiguousarray(values, dtype="float32").view("uint32")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    halves = (rounded >> 16).astype("uint16")
    return xp.where(xp.isnan(values), xp.uint16(0x7FC0), halves)


def decode(stored: Any, dtype: DType) -> Any:
    """The values of a storage array, as float32 (float64 for float64)."""
    if dtype is not DType.BFLOAT16:
        return stored.astype("float64" if dtype is DType.FLOAT64 else "float32")
    return (stored.astype("uint32") << 16).view("float32").reshape(stored.shape)
