"""What ``matmul`` needs of an array library, and how an array lies in memory, whichever library it is of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from tilewright.errors import InvalidProblem
from tilewright.problem import Activation, DType


@dataclasses.dataclass(frozen=True, slots=True)
class Strided:
    """An array as it lies in memory.

    Attributes:
        shape: extents.
        strides: elements from one index to the next, an axis each.
        dtype: element type.
        device: ordinal of the CUDA device whose memory it is; -1 on the host.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to A B on its way to D = act(alpha * A B + beta * D + bias)."""

    activation: Activation = Activation.NONE
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def plain(self) -> bool:
        """Nothing happens to it."""
        return self.activation is Activation.NONE and self.alpha == 1.0 and self.beta == 0.0


class ArrayLibrary(Protocol):
    """One array library. What is called on every launch is a plain callable, to cost as little as it can."""

    @property
    def address(self) -> Callable[[Any], int]:
        """The address of an array's first element."""

    @property
    def empty(self) -> Callable[[Any, tuple[int, ...]], Any]:
        """An uninitialised array of a shape with the library, device and element type of another one."""

    @property
    def stream(self) -> Callable[[int], int]:
        """The handle of the stream that the library works on now, on a device; 0 on the host."""

    @property
    def linear(self) -> Callable[[Any, Any, Any], Any]:
        """``x @ weight.T + bias``, the bias None for none, by the library's own means."""

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        """Everything that decides how operands are multiplied, but their addresses; None where the library
        must do it itself this time (a gradient is wanted, autocast is on)."""

    def describe(self, array: Any) -> Strided:
        """How an array lies in memory.

        Raises:
            InvalidProblem: there are no kernels for its element type, strides or device.
        """

    def operand_type(self, dtype: DType) -> DType:
        """What the library itself would multiply elements of this type in."""

    def zero_bytes(self, like: Any, size: int) -> Any:
        """An array of ``size`` zero bytes on the device of another one."""

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        """The same by the library's own means, hence by the vendor library."""


class Weights:
    """A library whose products take the second operand as layers keep their weights, ``(n, k)``."""

    def __init__(self, library: ArrayLibrary) -> None:
        self.address, self.empty, self.stream = library.address, library.empty, library.stream
        self.describe, self.operand_type = library.describe, library.operand_type
        self.zero_bytes = library.zero_bytes
        self._key, self._product, self.linear = library.key, library.product, library.linear

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        """See :class:`ArrayLibrary`."""
        key = self._key(a, b, out, bias)
        return None if key is None else ("weight", key)

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        """See :class:`ArrayLibrary`."""
        if out is None and epilogue.plain:
            return self.linear(a, b, bias)
        return self._product(a, b.T, out, bias, epilogue)


LIBRARIES: dict[type, ArrayLibrary] = {}
"""By the types of arrays met so far."""
WEIGHTS: dict[type, Weights] = {}


def library_of(array: Any) -> ArrayLibrary:
    """The library that an array belongs to.

    Raises:
        InvalidProblem: it is neither a torch tensor nor a CuPy or NumPy array.
    """
    kind = type(array)
    if kind not in LIBRARIES:
        LIBRARIES[kind] = _library(kind)
        WEIGHTS[kind] = Weights(LIBRARIES[kind])
    return LIBRARIES[kind]


def weights_of(array: Any) -> Weights:
    """The same with weights for second operands.

    Raises:
        InvalidProblem: it is neither a torch tensor nor a CuPy or NumPy array.
    """
    library_of(array)
    return WEIGHTS[type(array)]


def strided(array: Any) -> Strided:
    """How an array lies in memory, without copying.

    Raises:
        InvalidProblem: there are no kernels for it.
    """
    return library_of(array).describe(array)


def element_type(name: str) -> DType:
    """The element type of that NumPy name.

    Raises:
        InvalidProblem: there are no kernels for it.
    """
    try:
        dtype = DType(name)
    except ValueError:
        raise InvalidProblem(f"no kernels for elements of type {name}") from None
    if dtype.packing > 1:
        raise InvalidProblem(f"arrays hold one {name} a byte, the kernels read {dtype.packing}")
    return dtype


def _library(kind: type) -> ArrayLibrary:
    # NOTE: a library is imported only once one of its arrays is there; by then it is loaded.
    names = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in names:
        from tilewright.torch_arrays import TorchArrays

        return TorchArrays()
    if "cupy" in names:
        from tilewright.cupy_arrays import CupyArrays

        return CupyArrays()
    if "numpy" in names:
        from tilewright.numpy_arrays import NumpyArrays

        return NumpyArrays()
    raise InvalidProblem(f"matmul takes torch, CuPy and NumPy arrays, got {kind.__module__}.{kind.__name__}")
