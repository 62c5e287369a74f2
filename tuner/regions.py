"""Bytes that two processes of one machine share without copying them through a pipe."""

from __future__ import annotations

import dataclasses
import mmap
import os
from types import TracebackType
from typing import Self

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
