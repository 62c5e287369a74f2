"""``GemmProblem``: the product to compute, without any choice of how."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from tilewright.errors import InvalidProblem
from tilewright.schema.codec import Bounds, encode
from tilewright.schema.dtype import ACCUMULATE_TYPES, OPERAND_TYPES, OUT_TYPES, DType

__all__ = ["MAX_EXTENT", "OPERAND_TYPES", "Activation", "DType", "GemmProblem", "Layout"]

MAX_EXTENT = 2**31 - 1
_MAX_FLOAT32 = 3.4028234663852886e38
_ZERO_FLOAT32 = 2.0**-150  # the largest number that float32 rounds to 0
Extent = Annotated[int, Bounds(1, MAX_EXTENT)]


class Layout(StrEnum):
    """How row-major A and B are stored: ``n`` as M x K / K x N, ``t`` transposed (K x M / N x K)."""

    NN = "nn"
    NT = "nt"
    TN = "tn"
    TT = "tt"

    @property
    def a_transposed(self) -> bool:
        """Whether A is stored K x M."""
        return self.value[0] == "t"

    @property
    def b_transposed(self) -> bool:
        """Whether B is stored N x K."""
        return self.value[1] == "t"

    def extents(self, a: Sequence[int], b: Sequence[int]) -> tuple[int, int, int]:
        """m, n and k of stored matrices, or stacks of them, of these shapes."""
        m, k = a[-2:][::-1] if self.a_transposed else a[-2:]
        return m, b[-2] if self.b_transposed else b[-1], k


class Activation(StrEnum):
    """The function applied last; ``gelu`` is the tanh approximation."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"


# NOTE: without slots, so that requests of the wire can inherit the fields.
@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """D = act(alpha * op(A) op(B) + beta * C + bias), row-major, densely packed.

    Attributes:
        m, n, k: extents of D (m x n) and of the reduction (k), each in 1 .. 2^31 - 1.
        dtype: element type of A and B.
        layout: how A and B are stored, see :class:`Layout`.
        batch: number of independent products, operands stacked along the first axis.
        out_dtype: element type of C, D and bias; that of A and B unless given, but float32 for tfloat32
            and the 8-bit floats, int32 for integers.
        acc_dtype: accumulate type; float32 (float64 for float64, int32 for integers) unless given. Integers
            beyond int32 wrap around.
        activation: function applied last; integers have no gelu.
        has_bias: whether a bias vector of n elements is added to every row.
        has_c: whether beta * C is added. Without it beta must be 0 and C is never read.

    Raises:
        InvalidProblem: an extent is out of range, the types cannot be combined, or rows of a packed type do
            not fill whole bytes.
    """

    m: Extent
    n: Extent
    k: Extent
    dtype: DType = DType.FLOAT16
    layout: Layout = Layout.NT
    batch: Extent = 1
    out_dtype: DType | None = None
    acc_dtype: DType | None = None
    activation: Activation = Activation.NONE
    has_bias: bool = False
    has_c: bool = False

    def __post_init__(self) -> None:
        _coerce(self, "dtype", DType)
        _coerce(self, "layout", Layout)
        _coerce(self, "activation", Activation)
        if self.dtype not in OPERAND_TYPES:
            raise InvalidProblem(
                f"{self.dtype} is a type of results only; A and B must have one of {', '.join(OPERAND_TYPES)}"
            )
        _coerce(self, "out_dtype", DType, OUT_TYPES[self.dtype][0])
        _coerce(self, "acc_dtype", DType, ACCUMULATE_TYPES[self.dtype][0])
        for name in ("m", "n", "k", "batch"):
            _coerce_extent(self, name)
        for name in ("has_bias", "has_c"):
            _coerce_flag(self, name)
        self._check_types()
        self._check_rows()

    def _check_types(self) -> None:
        if self.accumulate not in ACCUMULATE_TYPES[self.dtype]:
            allowed = ", ".join(ACCUMULATE_TYPES[self.dtype])
            raise InvalidProblem(
                f"{self.dtype} accumulates in {allowed}; acc_dtype must be one of these, got {self.acc_dtype}"
            )
        if self.out not in (*OUT_TYPES[self.dtype], self.accumulate):
            narrow = " or ".join(OUT_TYPES[self.dtype])
            raise InvalidProblem(
                f"out_dtype must be {narrow} or the accumulate type {self.accumulate}, got {self.out}"
            )
        if self.dtype.is_integer and self.activation is Activation.GELU:
            raise InvalidProblem(
                f"gelu needs a type such as float16; {self.dtype} accumulates in {self.accumulate}"
            )

    def _check_rows(self) -> None:
        packing = self.dtype.packing
        for name, (_, columns) in (("A", self.a_shape), ("B", self.b_shape)):
            if columns % packing:
                raise InvalidProblem(
                    f"{packing} elements of {self.dtype} share a byte, so the {columns} of a row of {name} "
                    f"(layout {self.layout}) must be a multiple of {packing}"
                )

    @property
    def out(self) -> DType:
        """Element type of C, D and bias."""
        return self.out_dtype or OUT_TYPES[self.dtype][0]

    @property
    def accumulate(self) -> DType:
        """The accumulate type."""
        return self.acc_dtype or ACCUMULATE_TYPES[self.dtype][0]

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
        return self.dtype.nbytes((self.m + self.n) * self.k * self.batch)

    @property
    def total_bytes(self) -> int:
        """Bytes of A, B and D in device memory, and of C if it is read."""
        outputs = 2 if self.has_c else 1
        return self.operand_bytes + outputs * self.m * self.n * self.batch * self.out.size

    def stride_alignment(self, operand: str) -> int:
        """Bytes (a power of two, at most 16) that divide every row stride of ``a``, ``b`` or ``d``."""
        columns = {"a": self.a_shape[1], "b": self.b_shape[1], "d": self.n}[operand]
        dtype = self.out if operand == "d" else self.dtype
        return math.gcd(16, dtype.nbytes(columns))

    def to_dict(self) -> dict[str, Any]:
        """The problem as plain data, names and numbers, including defaults."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GemmProblem:
        """The inverse of :meth:`to_dict`.

        Raises:
            InvalidProblem: a field is unknown, missing or out of range.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidProblem(f"not a GEMM problem, check its fields: {error}") from error

    @property
    def without_extents(self) -> str:
        """The name without extents and batch: type, layout, and each option that is not the default."""
        out = "" if self.out is OUT_TYPES[self.dtype][0] else f"out={self.out}"
        accumulate = "" if self.accumulate is ACCUMULATE_TYPES[self.dtype][0] else f"acc={self.accumulate}"
        activation = "" if self.activation is Activation.NONE else self.activation
        flags = ("bias" if self.has_bias else "", "C" if self.has_c else "")
        return " ".join(filter(None, (self.dtype, self.layout, out, accumulate, *flags, activation)))

    def __str__(self) -> str:
        """A name that no other problem has."""
        batch = f"{self.batch}x " if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.without_extents}"


def variants(problem: GemmProblem) -> list[GemmProblem]:
    """The same product in every layout and element type that it can have, itself included.

    With another element type, result and accumulate type are its defaults.
    """
    found = []
    for dtype, layout in itertools.product(OPERAND_TYPES, Layout):
        change: dict[str, Any] = {"layout": layout}
        if dtype is not problem.dtype:
            change |= {"dtype": dtype, "out_dtype": None, "acc_dtype": None}
        with contextlib.suppress(InvalidProblem):
            found.append(dataclasses.replace(problem, **change))
    return found


def check_factors(problem: GemmProblem, alpha: float, beta: float) -> None:
    """Raise an error for finite factors that become infinite, or 0, in the accumulate type.

    Raises:
        InvalidProblem: the message names the factor and its bound.
    """
    if problem.accumulate is DType.FLOAT64:
        return
    for name, value in (("alpha", alpha), ("beta", beta)):
        if math.isfinite(value) and abs(value) > _MAX_FLOAT32:
            raise too_large(name, value, _MAX_FLOAT32, problem.dtype)
        if 0.0 < abs(value) <= _ZERO_FLOAT32:
            raise InvalidProblem(
                f"{name} must be 0 or more than {_ZERO_FLOAT32:.8g} in size for {problem.dtype}, got "
                f"{value:g}; scale an operand instead"
            )


def too_large(name: str, value: float, most: float, dtype: str) -> InvalidProblem:
    """The error for a finite factor that becomes infinite in the type of the running sum."""
    return InvalidProblem(
        f"{name} must be at most {most:.8g} in size for {dtype}, got {value:g}; scale an operand instead"
    )


def reads_operands(problem: GemmProblem, alpha: float) -> bool:
    """Whether D depends on A and B. With alpha = 0 it does not, as in every BLAS: they may hold NaN. Integers
    hold none, so their product is as good as any zero."""
    return alpha != 0.0 or problem.accumulate.is_integer


def _coerce(problem: GemmProblem, name: str, enum: type[StrEnum], default: StrEnum | None = None) -> None:
    value = getattr(problem, name)
    value = default if value is None else value
    try:
        object.__setattr__(problem, name, enum(str(value)))
    except ValueError:
        allowed = ", ".join(enum)
        raise InvalidProblem(f"{name} must be one of {allowed}; got {value!r}") from None


def _coerce_extent(problem: GemmProblem, name: str) -> None:
    value = getattr(problem, name)
    try:
        extent = 0 if isinstance(value, bool) else operator.index(value)  # also for NumPy's integers
    except TypeError:
        extent = 0
    if not 1 <= extent <= MAX_EXTENT:
        raise InvalidProblem(f"{name} must be an integer in 1 .. {MAX_EXTENT}, got {value!r}")
    object.__setattr__(problem, name, extent)


def _coerce_flag(problem: GemmProblem, name: str) -> None:
    value = getattr(problem, name)
    if value not in (True, False):  # NumPy's flags are equal to Python's
        raise InvalidProblem(f"{name} must be true or false, got {value!r}")
    object.__setattr__(problem, name, bool(value))
