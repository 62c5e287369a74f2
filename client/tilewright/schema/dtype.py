"""Element types, and the combinations that a GEMM can have."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    """Element types by their NumPy names, ``tfloat32`` and ``sign1``.

    ``tfloat32`` is float32 in memory that the tensor cores may multiply with 10 bits of mantissa. It is a
    separate type so that a float32 problem never runs in it silently: the two have separate results,
        artifacts and
    lookups. ``int32`` is a type of results only.

    Types of fewer than 8 bits are packed along the rows as stored, the first element in the low bits of the
    first byte. ``uint1`` is 0 or 1; ``sign1`` is a sign bit alone: 0 stands for 1, 1 for -1.
    """

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    TFLOAT32 = "tfloat32"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    INT8 = "int8"
    UINT8 = "uint8"
    INT4 = "int4"
    UINT4 = "uint4"
    UINT1 = "uint1"
    SIGN1 = "sign1"
    INT32 = "int32"

    @property
    def bits(self) -> int:
        """Bits per element."""
        return _BITS[self]

    @property
    def size(self) -> int:
        """Bytes of a storage unit: an element, or the byte that holds ``packing`` elements.

        A pointer advances by storage units; ``nbytes`` gives the bytes of several elements.
        """
        return max(1, self.bits // 8)

    @property
    def packing(self) -> int:
        """Elements of a storage unit: 2 of 4 bits, 8 of one bit, else 1."""
        return max(1, 8 // self.bits)

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` elements, which must fill whole storage units."""
        return elements * self.bits // 8

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type, which accumulates exactly."""
        return self is DType.INT32 or self in _INTEGERS


_BITS = {
    DType.FLOAT16: 16,
    DType.BFLOAT16: 16,
    DType.FLOAT32: 32,
    DType.FLOAT64: 64,
    DType.TFLOAT32: 32,
    DType.FLOAT8_E4M3FN: 8,
    DType.FLOAT8_E5M2: 8,
    DType.INT8: 8,
    DType.UINT8: 8,
    DType.INT4: 4,
    DType.UINT4: 4,
    DType.UINT1: 1,
    DType.SIGN1: 1,
    DType.INT32: 32,
}

_INTEGERS = (DType.INT8, DType.UINT8, DType.INT4, DType.UINT4, DType.UINT1, DType.SIGN1)
# By element type of A and B, the default first. D may also have the accumulate type.
ACCUMULATE_TYPES = {
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT16),
    DType.BFLOAT16: (DType.FLOAT32,),
    DType.FLOAT32: (DType.FLOAT32,),
    DType.FLOAT64: (DType.FLOAT64,),
    DType.TFLOAT32: (DType.FLOAT32,),
    DType.FLOAT8_E4M3FN: (DType.FLOAT32,),
    DType.FLOAT8_E5M2: (DType.FLOAT32,),
    **dict.fromkeys(_INTEGERS, (DType.INT32,)),
}
OUT_TYPES = {
    DType.FLOAT16: (DType.FLOAT16,),
    DType.BFLOAT16: (DType.BFLOAT16,),
    DType.FLOAT32: (DType.FLOAT32,),
    DType.FLOAT64: (DType.FLOAT64,),
    DType.TFLOAT32: (DType.FLOAT32,),
    DType.FLOAT8_E4M3FN: (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16),
    DType.FLOAT8_E5M2: (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16),
    **dict.fromkeys(_INTEGERS, (DType.INT32,)),
}
OPERAND_TYPES = tuple(ACCUMULATE_TYPES)
