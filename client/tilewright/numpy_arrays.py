"""NumPy arrays, and what CuPy's have in common with them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from tilewright.arrays import Epilogue, Strided, element_type
from tilewright.errors import InvalidProblem
from tilewright.problem import Activation, DType


class NumpyArrays:
    """Implements :class:`tilewright.arrays.ArrayLibrary` for ``numpy.ndarray``."""

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
        place = self.place(a, b)
        if out is None and bias is None:
            return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, place
        others = tuple(_facts(array) for array in (out, bias))
        return a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, place, others

    def place(self, a: Any, b: Any) -> Hashable:  # noqa: ARG002
        """Where the operands are, as far as it differs."""
        return None

    def device(self, array: Any) -> int:  # noqa: ARG002
        """Ordinal of the CUDA device; -1 on the host."""
        return -1

    def describe(self, array: Any) -> Strided:
        """See :class:`ArrayLibrary`."""
        size = array.itemsize
        if any(stride % size for stride in array.strides):
            raise InvalidProblem(f"strides of {array.strides} bytes are no whole elements; copy the array")
        strides = tuple(stride // size for stride in array.strides)
        return Strided(array.shape, strides, element_type(array.dtype.name), self.device(array))

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
    return None if array is None else (type(array), array.shape, array.strides, array.dtype)
