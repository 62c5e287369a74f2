"""``GemmProblem``: what is to be computed, and nothing about how."""

from __future__ import annotations

import dataclasses
import math
from enum import StrEnum
from typing import Any

from tilewright.errors import InvalidProblem

MAX_EXTENT = 2**31 - 1


class DType(StrEnum):
    """Element types by their NumPy names."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[self.value]


class Layout(StrEnum):
    """How row-major A and B are stored: ``n`` as M x K / K x N, ``t`` transposed (K x M / N x K)."""

    NN = "nn"
    NT = "nt"
    TN = "tn"
    TT = "tt"

    @property
    def a_transposed(self) -> bool:
        """A is stored K x M."""
        return self.value[0] == "t"

    @property
    def b_transposed(self) -> bool:
        """B is stored N x K."""
        return self.value[1] == "t"


class Activation(StrEnum):
    """The function applied last; ``gelu`` is the tanh approximation."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"


_ACCUMULATE = {
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT16),
    DType.BFLOAT16: (DType.FLOAT32,),
    DType.FLOAT32: (DType.FLOAT32,),
    DType.FLOAT64: (DType.FLOAT64,),
}


@dataclasses.dataclass(frozen=True, slots=True)
class GemmProblem:
    """D = act(alpha * op(A) op(B) + beta * C + bias), row-major, densely packed.

    Attributes:
        m, n, k: extents of D (m x n) and of the sum (k), each in 1 .. 2^31 - 1.
        dtype: element type of A and B.
        layout: how A and B are stored, see :class:`Layout`.
        batch: number of independent products, operands stacked along the first axis.
        out_dtype: element type of C, D and bias; that of A and B unless given.
        acc_dtype: type of the running sum; float32 (float64 for float64) unless given.
        activation: function applied last.
        has_bias: whether a bias vector of n elements is added to every row.
        has_c: whether beta * C is added. Without it beta must be 0 and C is never read.

    Raises:
        InvalidProblem: an extent is out of range or the types do not go together.
    """

    m: int
    n: int
    k: int
    dtype: DType = DType.FLOAT16
    layout: Layout = Layout.NT
    batch: int = 1
    out_dtype: DType | None = None
    acc_dtype: DType | None = None
    activation: Activation = Activation.NONE
    has_bias: bool = False
    has_c: bool = False

    def __post_init__(self) -> None:
        _coerce(self, "dtype", DType)
        _coerce(self, "layout", Layout)
        _coerce(self, "activation", Activation)
        _coerce(self, "out_dtype", DType, self.dtype)
        _coerce(self, "acc_dtype", DType, _ACCUMULATE[self.dtype][0])
        for name in ("m", "n", "k", "batch"):
            extent = getattr(self, name)
            if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= MAX_EXTENT:
                raise InvalidProblem(f"{name} must be an integer in 1 .. {MAX_EXTENT}, got {extent!r}")
        if self.accumulate not in _ACCUMULATE[self.dtype]:
            allowed = ", ".join(_ACCUMULATE[self.dtype])
            raise InvalidProblem(
                f"{self.dtype} accumulates in {allowed}; acc_dtype {self.acc_dtype} is not available"
            )
        if self.out not in (self.dtype, self.accumulate):
            raise InvalidProblem(
                f"out_dtype must be {self.dtype} or the accumulate type {self.accumulate}, got {self.out}"
            )

    @property
    def out(self) -> DType:
        """Element type of C, D and bias."""
        return self.out_dtype or self.dtype

    @property
    def accumulate(self) -> DType:
        """Element type of the running sum."""
        return self.acc_dtype or _ACCUMULATE[self.dtype][0]

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiply-add counts as two."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def a_shape(self) -> tuple[int, int]:
        """Stored (rows, columns) of one A."""
        return (self.k, self.m) if self.layout.a_transposed else (self.m, self.k)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Stored (rows, columns) of one B."""
        return (self.n, self.k) if self.layout.b_transposed else (self.k, self.n)

    @property
    def operand_bytes(self) -> int:
        """Bytes of A and B over the whole batch."""
        return (self.m + self.n) * self.k * self.batch * self.dtype.size

    @property
    def total_bytes(self) -> int:
        """Bytes of A, B and D, and of C where it is read: what device memory must hold."""
        outputs = 2 if self.has_c else 1
        return self.operand_bytes + outputs * self.m * self.n * self.batch * self.out.size

    def stride_alignment(self, operand: str) -> int:
        """Bytes (a power of two, at most 16) that divide every row stride of ``a``, ``b`` or ``d``."""
        columns = {"a": self.a_shape[1], "b": self.b_shape[1], "d": self.n}[operand]
        size = self.out.size if operand == "d" else self.dtype.size
        return math.gcd(16, columns * size)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: names and numbers only, defaults spelled out."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GemmProblem:
        """The inverse of :meth:`to_dict`.

        Raises:
            InvalidProblem: a field is unknown, missing or out of range.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidProblem(f"not a GEMM problem: {error}") from error

    def __str__(self) -> str:
        batch = f"{self.batch}x " if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.dtype} {self.layout}"


def _coerce(problem: GemmProblem, name: str, enum: type[StrEnum], default: StrEnum | None = None) -> None:
    value = getattr(problem, name)
    value = default if value is None else value
    try:
        object.__setattr__(problem, name, enum(str(value)))
    except ValueError:
        allowed = ", ".join(enum)
        raise InvalidProblem(f"{name} must be one of {allowed}; got {value!r}") from None


def _plain(value: object) -> object:
    return value.value if isinstance(value, StrEnum) else value
