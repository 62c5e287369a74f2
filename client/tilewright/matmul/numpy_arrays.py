"""NumPy arrays; also the base of CuPy arrays."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.ma import MaskedArray  # NOTE: as np.ma it is imported at its first use, and a fork does not wait

from tilewright.errors import InvalidProblem
from tilewright.matmul.arrays import Epilogue, Strided, check_own_memory, element_type, factors
from tilewright.schema.problem import Activation, DType, too_large


class NumpyArrays:
    """Implements :class:`tilewright.matmul.arrays.ArrayLibrary` for ``numpy.ndarray``."""

    xp: Any = np

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return self.xp.empty(shape, like.dtype)

    def stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def written(self, out: Any) -> None:
        """See :class:`ArrayLibrary`."""

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        plain = self.xp.ndarray
        # NOTE: masked arrays, matrices and other subclasses define their own product.
        if type(a) is not plain or type(b) is not plain:
            return None
        where = self.where(a, b)
        if out is None and bias is None:
            return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, where
        if any(array is not None and type(array) is not plain for array in (out, bias)):
            return None
        others = _facts(out), _facts(bias), out is None or self.writable(out)
        return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, where, others

    def where(self, a: Any, b: Any) -> Hashable:  # noqa: ARG002
        """A key of the operands' devices; empty on the host."""
        return None

    def writable(self, array: Any) -> bool:
        """Whether an array may be written to."""
        return bool(array.flags.writeable)

    def device(self, array: Any) -> int:  # noqa: ARG002
        """Ordinal of the CUDA device; -1 on the host."""
        return -1

    def describe(self, array: Any) -> Strided:
        dtype, size = element_type(array.dtype.name), array.itemsize
        if any(stride % size for stride in array.strides):
            raise InvalidProblem(f"strides of {array.strides} bytes are no whole elements; copy the array")
        if not array.dtype.isnative:
            raise InvalidProblem(f"elements must have this machine's byte order, got {array.dtype.str}")
        strides = tuple(stride // size for stride in array.strides)
        return Strided(array.shape, strides, dtype, self.device(array), self.writable(array))

    def operand_type(self, dtype: DType) -> DType:
        return dtype

    def zero_bytes(self, like: Any, size: int) -> Any:  # noqa: ARG002
        return self.xp.zeros(size, "uint8")

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        if epilogue.plain and out is None and bias is None:
            return a @ b
        if isinstance(out, MaskedArray):  # NumPy may write to it before it finds that shapes do not fit
            raise InvalidProblem("out must not be a masked array; give its data")
        kind = self.xp.ndarray
        for name, array, kinds in (("out", out, kind), ("the bias", bias, (kind, np.generic))):
            if array is not None and not isinstance(array, kinds):
                raise InvalidProblem(
                    f"{name} must be an array as a is; use {kind.__module__}.array, got {type(array)}"
                )
        if out is not None and not (out.flags.c_contiguous or out.size == 0):
            check_own_memory(out.shape, map(abs, out.strides), out.itemsize)
        if epilogue.plain and bias is None:
            if (a.ndim, np.ndim(b), np.ndim(out)) != (2, 2, 2):
                _check_out(out, _product_shape(a, b))
            return self.xp.matmul(a, b, out=out)
        a, b = factors(a, self.xp.asanyarray(b), epilogue)
        half = _is_half(a.dtype, b.dtype)
        d = self.product_in_float32(a, b) if half else a @ b
        result = _check_epilogue(d, np.dtype("float16") if half else d.dtype, out, bias, epilogue)
        d = self._finished(d, out, bias, epilogue)
        if out is None:
            return d.astype(result, copy=False) if half else d
        out[...] = d
        return out

    def product_in_float32(self, a: Any, b: Any) -> Any:
        """The product of float16 operands in the type of the running sum, with which the epilogue
        continues."""
        return a.astype("float32") @ b.astype("float32")

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.product(x, weight.T, None, bias, Epilogue())

    def _finished(self, d: Any, c: Any, bias: Any, epilogue: Epilogue) -> Any:
        kind, multiply = d.dtype.type, self.xp.multiply  # NOTE: of two matrices * is the product
        d = d if epilogue.alpha == 1.0 else d * kind(epilogue.alpha)
        d = d if epilogue.beta == 0.0 else d + kind(epilogue.beta) * c
        d = d if bias is None else d + bias
        if epilogue.activation is Activation.RELU:
            return self.xp.maximum(d, kind(0))
        if epilogue.activation is Activation.GELU:
            cube = multiply(multiply(d, d), d)
            inner = kind(math.sqrt(2 / math.pi)) * (d + kind(0.044715) * cube)
            return multiply(kind(0.5) * d, kind(1) + self.xp.tanh(inner))
        return d


def _is_half(a: Any, b: Any) -> bool:
    """Whether the product of these types is float16."""
    return "float16" in (a.name, b.name) and np.can_cast(a, "float16") and np.can_cast(b, "float16")


def _product_shape(a: Any, b: Any) -> tuple[int, ...]:
    """The shape of the product of operands that fit together."""
    right = np.shape(b)
    lead = np.broadcast_shapes(a.shape[:-2], right[:-2])
    return *lead, *a.shape[:-1][-1:], *(right[-1:] if len(right) > 1 else ())


def _check_out(out: Any, shape: tuple[int, ...]) -> None:
    if np.shape(out) != shape:  # NumPy itself would broadcast the product
        raise InvalidProblem(f"out must have the shape {shape}, got {np.shape(out)}")


def _check_epilogue(d: Any, product: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
    """Refuse an epilogue that would be another formula in the types and shapes of these arrays. ``product``
    is the type of the product; ``d`` may be wider. Returns the type of the result.

    Raises:
        InvalidProblem: which rule, and what to give instead.
    """
    kind, columns = d.dtype.kind, d.shape[-1:]
    if bias is not None and bias.shape != columns:
        raise InvalidProblem(f"the bias must have the shape {columns}, got {bias.shape}")
    if out is not None:
        _check_out(out, d.shape)
    others = [array.dtype for array in (bias, out if epilogue.beta else None) if array is not None]
    result = np.result_type(product, *others)
    if epilogue.activation is Activation.GELU and (kind != "f" or result.kind == "c"):
        wrong = d.dtype if kind != "f" else result
        raise InvalidProblem(f"gelu is for floating-point arrays; convert those of type {wrong} first")
    if epilogue.activation is Activation.RELU and result.kind == "c":
        raise InvalidProblem("relu is for real numbers; give arrays that are not complex")
    for name, factor in (("alpha", epilogue.alpha), ("beta", epilogue.beta)):
        if kind in "biu" and not _holds(d.dtype, factor):
            raise InvalidProblem(f"{name} must be a value of type {d.dtype}, got {factor:g}")
        most = float(np.finfo(d.dtype).max) if kind in "fc" else math.inf
        if most < abs(factor) < math.inf:
            raise too_large(name, factor, most, str(product))
    if out is not None and not np.can_cast(result, out.dtype, "same_kind"):
        raise InvalidProblem(f"out must hold {result}, the type of the result; got {out.dtype}")
    return result


def _holds(dtype: Any, factor: float) -> bool:
    """Whether an integer or boolean type holds a factor exactly."""
    bounds = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return factor.is_integer() and bounds[0] <= factor <= bounds[1]


def _facts(array: Any) -> Hashable:
    return None if array is None else (array.shape, array.strides, array.dtype)
