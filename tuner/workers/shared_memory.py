"""Memory that two processes of one machine share, instead of copying bytes through a pipe.

It is sealed against shrinking: reading bytes of a mapped file that are gone ends a process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.errors import InvalidProblem
from tuner.devices.base import Device

_MOST_SPARE = 16 * 2**20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_NO_WRITES = 0x8 | 0x10  # F_SEAL_WRITE and F_SEAL_FUTURE_WRITE, which not every Python names


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """``size`` bytes from ``offset`` on of a file that another process may open.

    Attributes:
        path: path of the file, ``/proc/PID/fd/N``.
        owned: path that leads to the file for as long as its owner holds it open.
    """

    path: str
    owned: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset of the first byte after the region."""
        return self.offset + self.size

    def part(self, offset: int, size: int) -> Region:
        """``size`` bytes of the region, from ``offset`` after its start."""
        return dataclasses.replace(self, offset=self.offset + offset, size=size)


def is_sealed(fd: int, more: int = 0) -> bool:
    """Whether a file is memory that nobody can shrink and everybody who has it can write, with more seals."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # a file of another kind
        return False
    # NOTE: others may be set: where vm.memfd_noexec is, the kernel seals against execution.
    return seals & (_SEALS | more) == _SEALS | more and not seals & _NO_WRITES


class Pages:
    """Anonymous memory that other processes of this user can map; ``region`` is the part in use.

    It grows by appending and keeps its size when it is reused, so that other processes need not map it again.
    It is freed when it is closed, or this process was killed, and no other process maps it.

    Attributes:
        reserve: called with the bytes by which it is about to grow; what it raises keeps it as it is.
    """

    LEAST_BYTES = 2**20

    def __init__(self) -> None:
        self.reserve: Callable[[int], None] = lambda _more: None
        self._fd = os.memfd_create("tilewright", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, self.LEAST_BYTES)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self._fd, self.LEAST_BYTES)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def held(self) -> int:
        """The bytes of memory that it occupies, used or not."""
        return len(self._map)

    @property
    def region(self) -> Region:
        """The part in use."""
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return Region(path, path, 0, self._size)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        end = self._size + len(data)
        if end > self.held:
            self._grow(max(end, self.held + min(self.held, _MOST_SPARE)))
        self._map[self._size : end] = data
        self._size = end

    def resize(self, size: int) -> Region:
        """Set the size in use to ``size`` bytes, with new bytes of any value, and return the region."""
        if size > self.held:
            self._grow(size)
        self._size = size
        return self.region

    def _grow(self, size: int) -> None:
        self.reserve(size - self.held)
        self._map.resize(size)

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on, or fewer at the end."""
        return self._map[offset : min(offset + size, self._size)]

    def close(self) -> None:
        """Give the memory up."""
        self._map.close()
        os.close(self._fd)


_MOST_MAPPED = 16
_MOST_BYTES = 2 * 2**30
_GRAIN = 2 * 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    """Bytes of a file, known by its device and inode, from ``start`` on."""

    file: tuple[int, int]
    owned: str
    start: int
    array: Any
    pinned: bool

    @property
    def end(self) -> int:
        return self.start + len(self.array)

    @property
    def abandoned(self) -> bool:
        """Whether its owner has closed it."""
        try:
            return file_id(os.stat(self.owned)) != self.file
        except OSError:
            return True


class Mappings:
    """Maps regions and pins their memory for a device; keeps those used last.

    NOTE: pinned pages stay the same if the owner punches holes into the file; then only the requests of that
    owner compute with other bytes.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: list[_Mapped] = []  # in the order of use; those of one file never overlap or touch

    def arrays(self, regions: Mapping[str, Region]) -> dict[str, Any]:
        """The regions of one request as NumPy arrays on the mapped files.

        Raises:
            InvalidProblem: a file ends before its region does, or could shrink.
        """
        with contextlib.ExitStack() as opened:
            files: dict[tuple[int, int], tuple[int, dict[str, Region]]] = {}
            for name, region in regions.items():
                fd = os.open(region.path, os.O_RDWR | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                if not is_sealed(fd):
                    raise InvalidProblem("memory must be sealed against shrinking (F_SEAL_SHRINK)")
                found = os.fstat(fd)
                if found.st_size < region.end:
                    raise InvalidProblem(
                        f"a tensor ends at byte {region.end}, behind its memory's end; pass more memory"
                    )
                files.setdefault(file_id(found), (fd, {}))[1][name] = region
            arrays: dict[str, Any] = {}
            for fd, parts in files.values():
                arrays |= self._arrays(fd, parts)
            return arrays

    def trim(self) -> None:
        """Unmap memory that its owner released and, beyond the limits, memory used the longest ago."""
        for known in [known for known in self._kept if known.abandoned]:
            self._release(known)
        while len(self._kept) > _MOST_MAPPED or sum(len(one.array) for one in self._kept) > _MOST_BYTES:
            self._release(self._kept[0])

    def close(self) -> None:
        """Unmap all memory.

        NOTE: memory must be unpinned first, else it receives copies meant for memory mapped in its place.
        """
        while self._kept:
            self._release(self._kept[-1])

    def _arrays(self, fd: int, regions: Mapping[str, Region]) -> dict[str, Any]:
        found = os.fstat(fd)
        # NOTE: no more than is used: mapped memory is allocated and pinned.
        used = [
            (one.offset // _GRAIN * _GRAIN, min(found.st_size, -(-one.end // _GRAIN) * _GRAIN))
            for one in regions.values()
        ]
        spans = _merged([*used, *((known.start, known.end) for known in self._of_file(found))])
        arrays: dict[str, Any] = {}
        for name, one in regions.items():
            start, end = next(span for span in spans if span[0] <= one.offset < span[1])
            if end - start > _MOST_BYTES:
                arrays[name] = _map(fd, one.offset, one.end)
            else:
                whole = self._mapped(fd, one.owned, start, end)
                arrays[name] = whole.array[one.offset - start : one.end - start]
        return arrays

    def _mapped(self, fd: int, owned: str, start: int, end: int) -> _Mapped:
        """A mapping of these bytes of a file, which replaces existing mappings of parts of them."""
        found = os.fstat(fd)
        inside = [one for one in self._of_file(found) if start <= one.start < end]
        whole = next((one for one in inside if (one.start, one.end) == (start, end)), None)
        if whole is None:
            for one in inside:
                self._release(one)
            array = _map(fd, start, end)
            whole = _Mapped(file_id(found), owned, start, array, self._device.pin(array))
        else:
            self._kept.remove(whole)
        self._kept.append(whole)
        return whole

    def _of_file(self, found: os.stat_result) -> list[_Mapped]:
        return [one for one in self._kept if one.file == file_id(found)]

    def _release(self, known: _Mapped) -> None:
        self._kept.remove(known)
        if known.pinned:
            self._device.unpin(known.array)


def file_id(found: os.stat_result) -> tuple[int, int]:
    """What tells a file from every other one: the same for every path to it."""
    return found.st_dev, found.st_ino


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order; spans that overlap or touch are merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _map(fd: int, offset: int, end: int) -> Any:
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    # NOTE: populated at once: page faults during the kernel would count as its time.
    mapped = mmap.mmap(fd, end - start, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=start)
    return np.frombuffer(mapped, np.uint8, end - offset, offset - start)
