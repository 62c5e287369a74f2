"""``ArrayLibrary``: the interface of an array library to ``matmul``, and the library of an array."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol

from tilewright import forks
from tilewright.errors import InvalidProblem
from tilewright.schema.problem import Activation, DType


@dataclasses.dataclass(frozen=True, slots=True)
class Strided:
    """The layout of an array in memory.

    Attributes:
        shape: extent of each axis.
        strides: elements from one index to the next, for each axis.
        dtype: element type.
        device: ordinal of the CUDA device that holds it; -1 on the host.
        writable: whether a result may be written to it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int
    writable: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """The epilogue of D = act(alpha * A B + beta * D + bias)."""

    activation: Activation = Activation.NONE
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether D is the product alone."""
        return self.activation is Activation.NONE and self.alpha == 1.0 and self.beta == 0.0


class ArrayLibrary(Protocol):
    """An array library. Functions of every launch are plain callables, which cost less than methods."""

    @property
    def address(self) -> Callable[[Any], int]:
        """The address of an array's first element."""

    @property
    def empty(self) -> Callable[[Any, tuple[int, ...]], Any]:
        """An uninitialised array of a shape with the library, device and element type of another one."""

    @property
    def stream(self) -> Callable[[int], int]:
        """The handle of the library's current stream on a device; 0 on the host."""

    @property
    def written(self) -> Callable[[Any], object]:
        """Notes that a kernel writes to an array that the caller gave."""

    @property
    def linear(self) -> Callable[[Any, Any, Any], Any]:
        """``x @ weight.T + bias`` by the library itself; the bias may be None."""

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        """A key of all properties of the operands that decide on the kernel, except their addresses.

        None if the library must multiply them itself (a gradient is wanted, autocast is on, a subclass
        defines its own product).
        """

    def describe(self, array: Any) -> Strided:
        """The layout of an array in memory.

        Raises:
            InvalidProblem: there are no kernels for its element type, strides or device.
        """

    def operand_type(self, dtype: DType) -> DType:
        """The type in which the library itself multiplies elements of this type."""

    def zero_bytes(self, like: Any, size: int) -> Any:
        """An array of ``size`` zero bytes on the device of another one."""

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        """The product by the library itself, and so by the vendor library."""


class Weights:
    """An array library whose second operands are weights in the layout of layers, ``(n, k)``."""

    def __init__(self, library: ArrayLibrary) -> None:
        self.address, self.empty, self.stream = library.address, library.empty, library.stream
        self.describe, self.operand_type = library.describe, library.operand_type
        self.zero_bytes, self.written = library.zero_bytes, library.written
        self._key, self._product, self.linear = library.key, library.product, library.linear

    def key(self, a: Any, b: Any, out: Any, bias: Any) -> Hashable | None:
        key = self._key(a, b, out, bias)
        return None if key is None else ("weight", key)

    def product(self, a: Any, b: Any, out: Any, bias: Any, epilogue: Epilogue) -> Any:
        if out is None and epilogue.plain:
            return self.linear(a, b, bias)
        return self._product(a, b.T, out, bias, epilogue)


def element_type(name: str) -> DType:
    """The element type with a NumPy name.

    Raises:
        InvalidProblem: there are no kernels for it.
    """
    try:
        dtype = DType(name)
    except ValueError:
        raise InvalidProblem(f"kernels need elements of a type such as float32, got {name}") from None
    if dtype.packing > 1:
        raise InvalidProblem(f"arrays hold one {name} in a byte; the kernels need {dtype.packing}")
    return dtype


def check_own_memory(shape: Iterable[int], strides: Iterable[int], size: int = 1) -> None:
    """Refuse an ``out`` whose elements may share memory, which would hold a part of the product only.

    Args:
        strides: none below 0, in units of which an element has ``size``.
    """
    inner = size  # from the first to past the last element of the axes with smaller strides
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1 and stride < inner:
            raise InvalidProblem("elements of out must not share memory; give an out without such strides")
        inner += (extent - 1) * stride


def factors(a: Any, b: Any, epilogue: Epilogue) -> tuple[Any, Any]:
    """A and B, with k = 0 if alpha is 0: as in a BLAS, their product is then 0 even if they hold NaN.

    Operands of different k stay as they are, and the library refuses them.
    """
    if epilogue.alpha != 0.0 or a.shape[-1:] != b.shape[-2:][:1]:
        return a, b
    return a[..., :0], b[..., :0, :] if b.ndim > 1 else b[:0]


LIBRARIES: dict[type, ArrayLibrary] = {}
"""By the types of arrays met so far."""
WEIGHTS: dict[type, Weights] = {}
# NOTE: imported with the first array of each library: they are heavy, and they import this module.
_BY_PACKAGE = {
    "torch": ("tilewright.matmul.torch_arrays", "TorchArrays"),
    "cupy": ("tilewright.matmul.cupy_arrays", "CupyArrays"),
    "numpy": ("tilewright.matmul.numpy_arrays", "NumpyArrays"),
}


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
    """The library of an array, for second operands that are weights.

    Raises:
        InvalidProblem: it is neither a torch tensor nor a CuPy or NumPy array.
    """
    library_of(array)
    return WEIGHTS[type(array)]


def _library(kind: type) -> ArrayLibrary:
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    for package, (module, name) in _BY_PACKAGE.items():
        if package in packages:
            with forks.importing():
                library: ArrayLibrary = getattr(importlib.import_module(module), name)()
            return library
    raise InvalidProblem(
        f"matmul takes torch, CuPy and NumPy arrays, got {kind.__module__}.{kind.__name__};"
        " convert it, such as by numpy.asarray"
    )
