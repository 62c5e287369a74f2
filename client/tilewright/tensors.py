"""Tensors as bytes: NumPy arrays on one side, safetensors on the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes
import numpy as np
import safetensors

from tilewright.errors import InvalidProblem
from tilewright.problem import DType

MEDIA_TYPE = "application/vnd.safetensors"
WireCode = Literal["F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "I8", "U8", "I32"]
WIRE_TYPES: dict[WireCode, DType] = {
    "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
    "F8_E4M3": DType.FLOAT8_E4M3FN,
    "F8_E5M2": DType.FLOAT8_E5M2,
    "I8": DType.INT8,
    "U8": DType.UINT8,
    "I32": DType.INT32,
}
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


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major tensor in little-endian bytes."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds ``dtype`` on the host; ml_dtypes has what NumPy lacks.

    Raises:
        InvalidProblem: see :func:`check_wire`; arrays lack the same types.
    """
    check_wire(dtype)
    return _NUMPY[dtype]


def check_wire(dtype: DType) -> None:
    """Refuse what no tensor can be.

    Raises:
        InvalidProblem: several elements of ``dtype`` share a byte.
    """
    if dtype.packing > 1:
        raise InvalidProblem(
            f"safetensors has no packed {dtype}, so no tensor of it goes over the wire: tune the problem "
            "(POST /tune) and launch its artifact on packed operands, or send int8 or uint8"
        )


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The tensors as one safetensors file."""
    # NOTE: safetensors reads through raw addresses; `views` keeps the memory alive until it has.
    views = {name: np.frombuffer(tensor.data, np.uint8) for name, tensor in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=_NUMPY[tensor.dtype].name,
            shape=list(tensor.shape),
            data_ptr=views[name].ctypes.data,
            data_len=views[name].nbytes,
        )
        for name, tensor in tensors.items()
    }
    return safetensors.serialize(specs, dict(metadata or {}))


def unpack(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name.

    Raises:
        InvalidProblem: it is not one, or an element type is not known here.
    """
    try:
        items = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise InvalidProblem(f"not a safetensors file: {error}") from error
    return {name: _tensor(name, fields) for name, fields in items}


def from_array(name: str, array: Any) -> Tensor:
    """A NumPy array, or whatever converts by DLPack or ``__array__``, as a tensor.

    Raises:
        InvalidProblem: it cannot be converted, or its element type is not known here.
    """
    dtype, host = host_array(name, array)
    return Tensor(dtype, host.shape, host.tobytes())


def host_array(name: str, array: Any) -> tuple[DType, Any]:
    """The same as a row-major NumPy array with its type; copied only where it must be.

    Raises:
        InvalidProblem: it cannot be converted, or its element type is not known here.
    """
    host = np.ascontiguousarray(_host_array(name, array))
    try:
        dtype = DType(host.dtype.name)
    except ValueError:
        allowed = ", ".join(_NUMPY)
        raise InvalidProblem(f"{name} has element type {host.dtype.name}; use one of {allowed}") from None
    check_wire(dtype)
    return dtype, host


def to_array(tensor: Tensor) -> Any:
    """The tensor as a NumPy array (what NumPy lacks by ml_dtypes) that shares its memory, read-only."""
    return np.frombuffer(tensor.data, _NUMPY[tensor.dtype]).reshape(tensor.shape)


def _host_array(name: str, array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array
    try:
        if hasattr(array, "__dlpack__"):
            return np.from_dlpack(array, device="cpu")
        if hasattr(array, "__array__"):
            return np.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidProblem(
            f"{name} does not convert to a NumPy array ({error}); copy it to the host first"
        ) from error
    raise InvalidProblem(f"{name} must be a NumPy array or offer DLPack or __array__, got {type(array)}")


def _tensor(name: str, fields: Mapping[str, Any]) -> Tensor:
    dtype = WIRE_TYPES.get(fields["dtype"])
    if dtype is None:
        raise InvalidProblem(f"tensor {name} has type {fields['dtype']}; use one of {', '.join(WIRE_TYPES)}")
    return Tensor(dtype, tuple(fields["shape"]), bytes(fields["data"]))
