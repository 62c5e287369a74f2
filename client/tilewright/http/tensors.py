"""Tensors as bytes: NumPy arrays on one side, safetensors on the other."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.ma import MaskedArray

from tilewright.errors import InvalidProblem
from tilewright.schema.problem import DType
from tilewright.wire.safetensors import header, places

MEDIA_TYPE = "application/vnd.safetensors"
_PIECE = 2**20
_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.TFLOAT32: np.dtype(np.float32),
    DType.FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
    DType.INT32: np.dtype(np.int32),
}
# Integers as wide as the types of torch that NumPy's DLPack does not take.
_SAME_BITS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major tensor in little-endian bytes."""

    dtype: DType
    shape: tuple[int, ...]
    data: memoryview


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds ``dtype`` on the host, by ml_dtypes where NumPy has none.

    Raises:
        InvalidProblem: several elements of ``dtype`` share a byte.
    """
    check_wire(dtype)
    return _NUMPY[dtype]


def check_wire(dtype: DType) -> None:
    """Refuse an element type that tensors on the wire cannot have.

    Raises:
        InvalidProblem: several elements of ``dtype`` share a byte.
    """
    if dtype.packing > 1:
        raise InvalidProblem(
            f"safetensors has no packed {dtype}, so no tensor of it goes over the wire: tune the problem "
            "(POST /tune) and launch its artifact on packed operands, or send int8 or uint8"
        )


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[memoryview]:
    """The tensors as one safetensors file, in parts of at most 1 MiB that share the tensors' memory."""
    head = header({name: (one.dtype, one.shape) for name, one in tensors.items()}, metadata)
    whole = (memoryview(head), *(one.data for one in tensors.values()))
    return [data[start : start + _PIECE] for data in whole for start in range(0, len(data), _PIECE)]


def unpack(data: bytes | memoryview) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name; they share its memory.

    Raises:
        InvalidProblem: it is not one, or an element type is not known here.
    """
    view = memoryview(data)
    found = places(lambda start, size: bytes(view[start : start + size]), len(view))
    return {
        name: Tensor(place.dtype, place.shape, view[place.start : place.start + place.size])
        for name, place in found.items()
    }


def from_array(name: str, array: Any) -> Tensor:
    """A NumPy array, or an object with DLPack or ``__array__``, as a tensor that shares its memory.

    Raises:
        InvalidProblem: it cannot be converted, or its element type is not known here.
    """
    dtype, host = host_array(name, array)
    # NOTE: the types of ml_dtypes have no buffers of their own.
    return Tensor(dtype, host.shape, memoryview(host.reshape(-1).view(np.uint8)))


def host_array(name: str, array: Any) -> tuple[DType, Any]:
    """An array's element type, and the array as a row-major NumPy array; copied only if necessary.

    Raises:
        InvalidProblem: it cannot be converted, or its element type is not known here.
    """
    host = np.ascontiguousarray(_host_array(name, array))
    host = host.astype(host.dtype.newbyteorder("<"), copy=False)
    try:
        dtype = DType(host.dtype.name)
    except ValueError:
        allowed = ", ".join(_NUMPY)
        raise InvalidProblem(f"{name} has element type {host.dtype.name}; use one of {allowed}") from None
    check_wire(dtype)
    return dtype, host


def to_array(tensor: Tensor) -> Any:
    """The tensor as a NumPy array that shares its memory."""
    return np.frombuffer(tensor.data, _NUMPY[tensor.dtype]).reshape(tensor.shape)


def _host_array(name: str, array: Any) -> Any:
    if isinstance(array, MaskedArray):
        raise InvalidProblem(f"{name} is a masked array, whose mask is not sent; use its data or filled()")
    if isinstance(array, np.ndarray):
        return array
    try:
        if hasattr(array, "__dlpack__"):
            return _from_dlpack(name, array)
        if hasattr(array, "__array__"):
            return np.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]  # JAX explains its errors at length
        raise InvalidProblem(
            f"{name} does not convert to a NumPy array ({why}); give {_instead(name, array)}"
        ) from error
    raise InvalidProblem(f"{name} must be a NumPy array or offer DLPack or __array__, got {type(array)}")


def _instead(name: str, array: Any) -> str:
    """What to give instead of an array that does not convert, by its library."""
    packages = {base.__module__.partition(".")[0] for base in type(array).__mro__}
    if "torch" in packages:
        dtype = str(array.dtype).removeprefix("torch.")
        if dtype in _SAME_BITS:
            same = f"view(torch.{_SAME_BITS[dtype]}).numpy().view(ml_dtypes.{dtype})"
            return f"{name}.detach().cpu().{same}"
        return f"a dense tensor of real numbers, such as {name}.detach().cpu()"
    if packages & {"jax", "jaxlib"}:
        return f"numpy.asarray({name}), outside of jax.jit and jax.grad"
    return "a NumPy array in host memory, of bfloat16 by ml_dtypes"


def _from_dlpack(name: str, array: Any) -> Any:
    if any((base.__module__, base.__name__) == ("torch", "Tensor") for base in type(array).__mro__):
        array = _plain_tensor(name, array)
    try:
        host = np.from_dlpack(array, device="cpu")
    except TypeError:  # its DLPack is from before 2023.12 and takes no device, as that of earlier torch
        host = np.from_dlpack(array)
    # NOTE: for an address of 0, as fake tensors have it, NumPy takes memory of its own and does not fill it.
    if host.flags.owndata and host.size:
        raise InvalidProblem(
            f"{name} has no memory that holds its values, as fake and efficient zero tensors have none; give"
            " a NumPy array or a tensor that holds them, such as clone() of a zero tensor"
        )
    return host


def _plain_tensor(name: str, tensor: Any) -> Any:
    """A tensor of torch as DLPack may read it: with the sign of its values, and of no subclass."""
    torch = sys.modules["torch"]
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise InvalidProblem(
            f"{name} is a {kind.__module__}.{kind.__name__}, whose memory may not hold its values; give a"
            " NumPy array or a torch.Tensor that does, such as full_tensor() of a DTensor, or"
            " as_subclass(torch.Tensor) of what differs in its methods alone"
        )
    return tensor.resolve_neg()
