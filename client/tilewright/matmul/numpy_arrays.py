"""NumPy arrays, and what CuPy's have in common with them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from tilewright.errors import InvalidProblem
from tilewright.matmul.arrays import Epilogue, Strided, element_type
from tilewright.schema.problem import Activation, DType


class NumpyArrays:
    """Implements :class:`tilewright.matmul.arrays.ArrayLibrary` for ``numpy.ndarray``."""

    xp: Any = np

    def address(self, array: Any) -> int:
        """See :class:`ArrayLibrary`."""
        return int(array.__array_interface__["data"][0])

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        """See :class:`ArrayLibrary`."""
        return self.xp.empty(shape, like.dtype)

    def stream(self, device: int) -> int:  # noqa: ARG002
        """See :class:`ArrayLibrary`."""
        return 0

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        """See :class:`ArrayLibrary`."""
        plain = self.xp.ndarray
        # NOTE: masked arrays, matrices and other subclasses multiply in their own way.
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
        """Where the operands are, as far as it differs."""
        return None

    def writable(self, array: Any) -> bool:
        """Whether an array may be written to."""
        return bool(array.flags.writeable)

    def device(self, array: Any) -> int:  # noqa: ARG002
        """Ordinal of the CUDA device; -1 on the host."""
        return -1

    def describe(self, array: Any) -> Strided:
        """See :class:`ArrayLibrary`."""
        size = array.itemsize
        if any(stride % size for stride in array.strides):
            raise InvalidProblem(f"strides of {array.strides} bytes are no whole elements; copy the array")
        if not array.dtype.isnative:
            raise InvalidProblem(f"elements of type {array.dtype.str} are not in this machine's byte order")
        strides = tuple(stride // size for stride in array.strides)
        dtype = element_type(array.dtype.name)
        return Strided(array.shape, strides, dtype, self.device(array), self.writable(array))

    def operand_type(self, dtype: DType) -> DType:
        """See :class:`ArrayLibrary`."""
        return dtype

    def zero_bytes(self, like: Any, size: int) -> Any:  # noqa: ARG002
        """See :class:`ArrayLibrary`."""
        return self.xp.zeros(size, "uint8")

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        """See :class:`ArrayLibrary`."""
        if epilogue.plain and bias is None:
            return a @ b if out is None else self.xp.matmul(a, b, out=out)
        d = self._finished(a @ b, out, bias, epilogue)
        if out is None:
            return d
        out[...] = d
        return out

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """See :class:`ArrayLibrary`."""
        return x @ weight.T if bias is None else x @ weight.T + bias

    def _finished(self, d: Any, c: Any, bias: Any, epilogue: Epilogue) -> Any:
        kind = d.dtype.type
        d = d if epilogue.alpha == 1.0 else d * kind(epilogue.alpha)
        d = d if epilogue.beta == 0.0 else d + kind(epilogue.beta) * c
        d = d if bias is None else d + bias
        if epilogue.activation is Activation.RELU:
            return self.xp.maximum(d, kind(0))
        if epilogue.activation is Activation.GELU:
            inner = kind(math.sqrt(2 / math.pi)) * (d + kind(0.044715) * d * d * d)
            return kind(0.5) * d * (kind(1) + self.xp.tanh(inner))
        return d


def _facts(array: Any) -> Hashable:
    return None if array is None else (array.shape, array.strides, array.dtype)
