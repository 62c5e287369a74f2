"""Bytes that two processes of one machine share without copying them through a pipe."""

from __future__ import annotations

import dataclasses
import mmap
import os
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.errors import InvalidProblem


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """``size`` bytes from ``offset`` on of a file that the other process may open.

    Attributes:
        path: of the file; ``/proc/PID/fd/N`` for one without a name.
    """

    path: str
    offset: int
    size: int

    def part(self, offset: int, size: int) -> Region:
        """A part of it, from its own start."""
        return Region(self.path, self.offset + offset, size)

    def map(self, *, writable: bool = False) -> Any:
        """The bytes as a NumPy array that keeps them mapped while it lives; those of the file itself.

        Raises:
            InvalidProblem: the file ends before the region does.
        """
        if self.size == 0:
            return np.empty(0, np.uint8)
        start = self.offset - self.offset % mmap.ALLOCATIONGRANULARITY
        fd = os.open(self.path, os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY))
        try:
            if os.fstat(fd).st_size < self.offset + self.size:
                raise InvalidProblem(
                    f"a tensor ends at byte {self.offset + self.size}, behind its memory's end"
                )
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            # NOTE: populated at once: page faults during the kernel would be taken for its time.
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            length = self.offset + self.size - start
            mapped = mmap.mmap(fd, length, flags, protection, offset=start)
        finally:
            os.close(fd)
        return np.frombuffer(mapped, np.uint8, self.size, self.offset - start)


class Pages:
    """Memory without a name that grows by appending and that other processes of this user map.

    It is gone once it is closed and nobody maps it any more, also where this process is killed.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("tilewright", os.MFD_CLOEXEC)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def region(self) -> Region:
        """All of it."""
        return Region(f"/proc/{os.getpid()}/fd/{self._fd}", 0, self._size)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, self._size)
            self._size += written
            view = view[written:]

    def resize(self, size: int) -> Region:
        """Make it ``size`` bytes long, new ones zero; gives all of it."""
        os.ftruncate(self._fd, size)
        self._size = size
        return self.region

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from ``offset`` on, fewer at the end."""
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Give it back."""
        os.close(self._fd)
