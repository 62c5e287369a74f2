"""Registers, stack and shared memory of a kernel, read from its cubin: ELF with NVIDIA's ``.nv.info``.

The attribute numbers are those that ``cuobjdump --dump-elf`` prints by name (EIATTR_REGCOUNT,
EIATTR_FRAME_SIZE); a test compares the results with the assembler's own report.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tilewright.artifact import Resources
from tilewright.errors import ArtifactError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_FORMAT_SIZED = 4
_FRAME_SIZE = 0x11
_REGISTER_COUNT = 0x2F
_RESERVED_SMEM = 1024


def read_resources(cubin: bytes, entry: str) -> Resources:
    """Registers, stack frame (spills) and static shared memory of the kernel ``entry``.

    Raises:
        ArtifactError: not a cubin, or it has no such kernel.
    """
    try:
        sections = dict(_sections(cubin))
        symbol = _symbol_index(sections, entry)
        values = {
            attribute: value
            for attribute, index, value in _attributes(sections[".nv.info"])
            if index == symbol
        }
        registers = values[_REGISTER_COUNT]
    except (LookupError, ValueError, OverflowError, struct.error) as error:
        raise ArtifactError(f"not a cubin with a kernel {entry!r}, compile it again: {error!r}") from error
    return Resources(
        registers=registers,
        spill_bytes=values.get(_FRAME_SIZE, 0),
        static_smem=_static_smem(cubin, entry),
    )


def code_sections(cubin: bytes) -> dict[str, bytes]:
    """The instructions of every kernel in a cubin, by section name.

    Raises:
        ArtifactError: not a cubin.
    """
    return {name: data for name, data in _sections(cubin) if name.startswith(".text.")}


def _headers(cubin: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    if cubin[:4] != b"\x7fELF":
        raise ArtifactError("not a cubin: no ELF header; compile it again")
    programs, offset = struct.unpack_from("<QQ", cubin, 0x20)
    program_size, program_count, size, count, names = struct.unpack_from("<5H", cubin, 0x36)
    if programs + program_size * program_count > len(cubin):
        raise ArtifactError("not a cubin, or only a part of one; compile it again")
    if size != _SECTION.size:
        raise ArtifactError(f"not a cubin, compile it again: its section headers have {size} bytes")
    rows = [_SECTION.unpack_from(cubin, offset + size * i) for i in range(count)]
    strings = rows[names][4]
    for row in rows:
        yield _string(cubin, strings + row[0]), row


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    for name, row in _headers(cubin):
        yield name, cubin[row[4] : row[4] + row[5]]


def _static_smem(cubin: bytes, entry: str) -> int:
    rows = dict(_headers(cubin))
    row = rows.get(f".nv.shared.{entry}")
    reserved = _RESERVED_SMEM if ".nv.shared.reserved.0" in rows else 0
    return max(0, row[5] - reserved) if row else 0


def _symbol_index(sections: dict[str, bytes], entry: str) -> int:
    table = sections[".symtab"]
    for index in range(len(table) // _SYMBOL.size):
        name, info, *_ = _SYMBOL.unpack_from(table, index * _SYMBOL.size)
        if _string(sections[".strtab"], name) == entry and info & 0xF == 2:
            return index
    raise KeyError(entry)


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    position = 0
    while position + _ATTRIBUTE.size <= len(info):
        form, attribute, size = _ATTRIBUTE.unpack_from(info, position)
        position += _ATTRIBUTE.size
        if form == _FORMAT_SIZED:
            if size == 8:
                symbol, value = struct.unpack_from("<II", info, position)
                yield attribute, symbol, value
            position += size


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()
