"""The layout of safetensors files, so that neither side copies tensors into or out of them.

Format: https://github.com/huggingface/safetensors - eight bytes with the length of a JSON header, the header,
the tensors one after the other without gaps.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tilewright.errors import InvalidProblem, printable
from tilewright.schema.problem import DType

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
_LENGTH_BYTES = 8
_ALIGNED = 64
_MOST_HEADER = 64 * 1024
# NOTE: tfloat32 is stored as float32.
_CODES = {dtype: code for code, dtype in WIRE_TYPES.items()} | {DType.TFLOAT32: "F32"}
_Extent = Annotated[int, Field(strict=True, ge=0, le=2**48)]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file: type, shape, and its ``size`` bytes from ``start`` on."""

    dtype: DType
    shape: tuple[int, ...]
    start: int
    size: int


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dtype: WireCode
    shape: list[_Extent] = Field(max_length=8)
    data_offsets: tuple[_Extent, _Extent]


_HEADER = TypeAdapter(dict[str, _Entry])


def header(
    shapes: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The bytes before the tensors, which follow one after the other from a multiple of 64 on."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.size
        entries[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNED)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def places(read: Callable[[int, int], bytes], size: int) -> dict[str, Place]:
    """The tensors of a file of ``size`` bytes by name; ``read(offset, size)`` returns bytes of the file.

    Raises:
        InvalidProblem: it is not a safetensors file; the message says why.
    """
    end, entries = _header(read, size)
    found: dict[str, Place] = {}
    start = end
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        dtype = WIRE_TYPES[entry.dtype]
        taken = math.prod(entry.shape) * dtype.size
        if start + first != end or last - first != taken:
            raise _damaged(
                f"{name[:80]} must have {taken} bytes from {end - start} on,"
                f" its data_offsets are {first}, {last}"
            )
        found[name] = Place(dtype, tuple(entry.shape), end, taken)
        end += taken
    if end != size:
        raise _damaged(f"its tensors end at byte {end}, the file at {size}")
    return found


def _header(read: Callable[[int, int], bytes], size: int) -> tuple[int, dict[str, _Entry]]:
    """The offset of the first tensor, and the header's entry of each tensor."""
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES or length > min(_MOST_HEADER, size - _LENGTH_BYTES):
        raise _damaged(f"its header may have {_MOST_HEADER} bytes and must lie within the file")
    try:
        text = read(_LENGTH_BYTES, length).decode()
        data: Any = json.loads(text, object_pairs_hook=_once)
        if isinstance(data, dict):
            data.pop("__metadata__", None)
        return _LENGTH_BYTES + length, _HEADER.validate_python(data)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise _damaged(f"header {where}: {first['msg']}, got {str(first['input'])[:80]}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged("its header is not JSON") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different: of two alike, others may take another one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _damaged("its header has a name twice; use each once")
    return found


def _damaged(reason: str) -> InvalidProblem:
    # NOTE: a name of the file may hold anything, half a pair of surrogates too, which is no UTF-8.
    return InvalidProblem(printable(f"not a safetensors file, write it again: {reason}"))
