"""What ``matmul`` needs to know of an array, whichever library it belongs to."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilewright.errors import InvalidProblem
from tilewright.problem import DType


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """A two-dimensional array in memory.

    Attributes:
        shape: (rows, columns).
        strides: elements between rows and between columns.
        dtype: element type.
        address: of the first element.
        device: ordinal of the CUDA device whose memory it is; -1 on the host.
    """

    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: DType
    address: int
    device: int

    @property
    def on_gpu(self) -> bool:
        """The memory is a CUDA device's."""
        return self.device >= 0

    def stored(self) -> tuple[str, int] | None:
        """(``n`` or ``t``, row stride) of the row-major matrix in memory; None where there is none."""
        rows, columns = self.shape
        if (self.strides[1] == 1 or columns == 1) and (self.strides[0] >= columns or rows == 1):
            return "n", max(self.strides[0], columns)
        if (self.strides[0] == 1 or rows == 1) and (self.strides[1] >= rows or columns == 1):
            return "t", max(self.strides[1], rows)
        return None


def matrix(array: Any) -> Matrix:
    """Describe a NumPy or CuPy array or a torch tensor, without copying.

    Raises:
        InvalidProblem: it is not a matrix, or its element type is not known here.
    """
    if len(array.shape) != 2:
        raise InvalidProblem(f"matmul takes matrices, got shape {tuple(array.shape)}")
    rows, columns = (int(extent) for extent in array.shape)
    if _is_torch(array):
        if array.device.type not in ("cpu", "cuda"):
            raise InvalidProblem(f"no kernels for tensors on {array.device}")
        strides, address = array.stride(), array.data_ptr()
        device = array.device.index if array.is_cuda else -1
    else:
        strides = _element_strides(array)
        on_gpu = hasattr(array, "__cuda_array_interface__")
        address = array.data.ptr if on_gpu else array.ctypes.data
        device = array.device.id if on_gpu else -1
    name = str(array.dtype).removeprefix("torch.")
    try:
        dtype = DType(name)
    except ValueError:
        raise InvalidProblem(f"no kernels for elements of type {name}") from None
    if dtype.packing > 1:
        raise InvalidProblem(f"arrays hold one {name} a byte, the kernels read {dtype.packing}")
    return Matrix((rows, columns), (int(strides[0]), int(strides[1])), dtype, int(address), int(device))


def needs_gradient(array: Any) -> bool:
    """Whether the array's library records what is done with it, which a launch would hide from it."""
    return _is_torch(array) and bool(array.requires_grad) and bool(_torch().is_grad_enabled())


def empty_like(array: Any, shape: tuple[int, int]) -> Any:
    """An uninitialised array of the same library, device and element type."""
    if _is_torch(array):
        return array.new_empty(shape)
    return _module(array).empty(shape, dtype=array.dtype)


def zero_bytes_like(array: Any, size: int) -> Any:
    """``size`` zero bytes on the array's device."""
    if _is_torch(array):
        return array.new_zeros(size, dtype=_torch().uint8)
    return _module(array).zeros(size, dtype="uint8")


def byte_address(array: Any) -> int:
    """The address of what :func:`zero_bytes_like` made."""
    if _is_torch(array):
        return int(array.data_ptr())
    return int(array.data.ptr if hasattr(array, "__cuda_array_interface__") else array.ctypes.data)


def current_stream(array: Any) -> int:
    """The handle of the stream that the array's library works on now; 0 on the host."""
    if _is_torch(array):
        return int(_torch().cuda.current_stream(array.device).cuda_stream) if array.is_cuda else 0
    if hasattr(array, "__cuda_array_interface__"):
        return int(_module(array).cuda.get_current_stream().ptr)
    return 0


def _element_strides(array: Any) -> tuple[int, ...]:
    if any(stride % array.itemsize for stride in array.strides):
        raise InvalidProblem(f"strides of {array.strides} bytes are no whole elements; copy the array")
    return tuple(stride // array.itemsize for stride in array.strides)


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _torch() -> Any:
    import torch

    return torch


def _module(array: Any) -> Any:
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        return cupy
    import numpy

    return numpy
