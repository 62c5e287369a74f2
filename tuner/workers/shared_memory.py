"""Bytes that two processes of one machine share without copying them through a pipe."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.errors import InvalidProblem
from tuner.devices.base import Device

_LEAST_BYTES = 2**20
_MOST_SPARE = 16 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """``size`` bytes from ``offset`` on of a file that the other process may open.

    Attributes:
        path: of the file; ``/proc/PID/fd/N`` for one without a name.
    """

    path: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.size

    def part(self, offset: int, size: int) -> Region:
        """A part of it, from its own start."""
        return Region(self.path, self.offset + offset, size)


class Pages:
    """Memory without a name that other processes of this user map; what is in it ends at ``region``.

    It grows by appending and stays as large when it is used anew, so that nobody has to map it again. It is
    gone once it is closed, and where this process is killed and nobody maps it any more.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("tilewright", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _LEAST_BYTES)
        self._map = mmap.mmap(self._fd, _LEAST_BYTES)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def held(self) -> int:
        """Most bytes that it takes, used or not."""
        return len(self._map)

    @property
    def region(self) -> Region:
        """All that is in it."""
        return Region(f"/proc/{os.getpid()}/fd/{self._fd}", 0, self._size)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        end = self._size + len(data)
        if end > self.held:
            self._map.resize(max(end, self.held + min(self.held, _MOST_SPARE)))
        self._map[self._size : end] = data
        self._size = end

    def resize(self, size: int) -> Region:
        """Make it ``size`` bytes long, new ones of any value; gives all of it."""
        if size > self.held:
            self._map.resize(size)
        self._size = size
        return self.region

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from ``offset`` on, fewer at the end."""
        return self._map[offset : min(offset + size, self._size)]

    def close(self) -> None:
        """Give it back, also where others still map it."""
        self._map.close()
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


_MOST_MAPPED = 16
_MOST_BYTES = 2 * 2**30
_GRAIN = 2 * 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    """Bytes of a file, known by its device and inode, from ``start`` on."""

    file: tuple[int, int]
    fd: int
    start: int
    array: Any
    pinned: bool
    named: bool

    @property
    def end(self) -> int:
        return self.start + len(self.array)

    @property
    def abandoned(self) -> bool:
        """Its maker has truncated or unlinked it: it lives in this process alone."""
        found = os.fstat(self.fd)
        return found.st_size < self.end or (self.named and found.st_nlink == 0)


class Mappings:
    """Maps regions and pins their memory for a device; keeps what was used last.

    NOTE: what is pinned stays what it was, also where its owner punches holes into the file; then only that
    owner's own requests go wrong.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: list[_Mapped] = []  # the last used last; those of one file never overlap or touch

    def arrays(self, regions: Mapping[str, Region]) -> dict[str, Any]:
        """The bytes of the regions of one request as NumPy arrays; those of the files themselves.

        Raises:
            InvalidProblem: a file ends before its region does.
        """
        with contextlib.ExitStack() as opened:
            files: dict[tuple[int, int], tuple[int, dict[str, Region]]] = {}
            for name, region in regions.items():
                fd = os.open(region.path, os.O_RDWR | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                found = os.fstat(fd)
                if found.st_size < region.end:
                    raise InvalidProblem(f"a tensor ends at byte {region.end}, behind its memory's end")
                files.setdefault((found.st_dev, found.st_ino), (fd, {}))[1][name] = region
            arrays: dict[str, Any] = {}
            for fd, parts in files.values():
                arrays |= self._arrays(fd, parts)
            return arrays

    def trim(self) -> None:
        """Let go of what its owner gave up, and of what was used the longest ago where that is too much."""
        for known in [known for known in self._kept if known.abandoned]:
            self._release(known)
        while len(self._kept) > _MOST_MAPPED or sum(len(one.array) for one in self._kept) > _MOST_BYTES:
            self._release(self._kept[0])

    def close(self) -> None:
        """Let go of everything. NOTE: memory that is unmapped while it is pinned goes on to take copies that
        are meant for what is mapped in its place."""
        while self._kept:
            self._release(self._kept[-1])

    def _arrays(self, fd: int, regions: Mapping[str, Region]) -> dict[str, Any]:
        found = os.fstat(fd)
        for known in self._of_file(found):
            if known.end > found.st_size:
                self._release(known)
        # NOTE: as much as is used and no more: what is mapped is allocated and pinned.
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
                whole = self._mapped(fd, found, start, end)
                arrays[name] = whole.array[one.offset - start : one.end - start]
        return arrays

    def _mapped(self, fd: int, found: os.stat_result, start: int, end: int) -> _Mapped:
        """These bytes of a file, in place of those parts of them that are mapped already."""
        inside = [one for one in self._of_file(found) if start <= one.start < end]
        whole = next((one for one in inside if (one.start, one.end) == (start, end)), None)
        if whole is None:
            for one in inside:
                self._release(one)
            array = _map(fd, start, end)
            file, named = (found.st_dev, found.st_ino), found.st_nlink > 0
            whole = _Mapped(file, os.dup(fd), start, array, self._device.pin(array), named)
        else:
            self._kept.remove(whole)
        self._kept.append(whole)
        return whole

    def _of_file(self, found: os.stat_result) -> list[_Mapped]:
        return [one for one in self._kept if one.file == (found.st_dev, found.st_ino)]

    def _release(self, known: _Mapped) -> None:
        self._kept.remove(known)
        if known.pinned:
            self._device.unpin(known.array)
        os.close(known.fd)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Starts and ends in their order, those that overlap or touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _map(fd: int, offset: int, end: int) -> Any:
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    # NOTE: populated at once: page faults during the kernel would be taken for its time.
    mapped = mmap.mmap(fd, end - start, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=start)
    return np.frombuffer(mapped, np.uint8, end - offset, offset - start)
