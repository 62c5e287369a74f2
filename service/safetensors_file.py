"""Where the tensors of a safetensors file lie, so that they can be used without copying them out.

Format: https://github.com/huggingface/safetensors - eight bytes with the length of a JSON header, the header,
the tensors one after the other without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.operands import Operand
from tilewright.errors import InvalidProblem
from tilewright.problem import DType
from tilewright.tensors import WIRE_TYPES, WireCode
from tuner.regions import Pages

_LENGTH_BYTES = 8
_MOST_HEADER = 64 * 1024
_CODES = {dtype: code for code, dtype in WIRE_TYPES.items()}
_Extent = Annotated[int, Field(strict=True, ge=0, le=2**48)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dtype: WireCode
    shape: list[_Extent] = Field(max_length=8)
    data_offsets: tuple[_Extent, _Extent]


_HEADER = TypeAdapter(dict[str, _Entry])


def operands(file: Pages) -> dict[str, Operand]:
    """The tensors of a file by name, where they lie.

    Raises:
        InvalidProblem: it is not a safetensors file; the message says why.
    """
    start, entries = _header(file)
    found: dict[str, Operand] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        dtype = WIRE_TYPES[entry.dtype]
        size = math.prod(entry.shape) * dtype.size
        if first != end or last - first != size:
            raise _damaged(
                f"{name} must have {size} bytes from {end} on, its data_offsets are {first}, {last}"
            )
        end = last
        found[name] = Operand(dtype, tuple(entry.shape), file.region.part(start + first, size))
    if start + end != file.region.size:
        raise _damaged(f"its tensors end at byte {start + end}, the file at {file.region.size}")
    return found


def header(name: str, operand: Operand, metadata: Mapping[str, str]) -> bytes:
    """What precedes the bytes of a file's only tensor."""
    # NOTE: float32 stands for tfloat32 in memory.
    stored = DType.FLOAT32 if operand.dtype is DType.TFLOAT32 else operand.dtype
    entry = {
        "dtype": _CODES[stored],
        "shape": list(operand.shape),
        "data_offsets": [0, operand.region.size],
    }
    text = json.dumps({"__metadata__": dict(metadata), name: entry}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _header(file: Pages) -> tuple[int, dict[str, _Entry]]:
    length = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    if file.region.size < _LENGTH_BYTES or length > min(_MOST_HEADER, file.region.size - _LENGTH_BYTES):
        raise _damaged(f"its header may have {_MOST_HEADER} bytes and must lie within the file")
    try:
        data: Any = json.loads(file.read(_LENGTH_BYTES, length))
        if isinstance(data, dict):
            data.pop("__metadata__", None)
        return _LENGTH_BYTES + length, _HEADER.validate_python(data)
    except ValidationError as error:
        [first, *_] = error.errors()
        where = ".".join(map(str, first["loc"]))
        raise _damaged(f"header {where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged("its header is not JSON") from error


def _damaged(reason: str) -> InvalidProblem:
    return InvalidProblem(f"not a safetensors file: {reason}")
