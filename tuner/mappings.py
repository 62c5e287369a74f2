"""Memory of other processes that stays mapped here from one GEMM on request to the next."""

from __future__ import annotations

import dataclasses
import mmap
import os
from typing import Any

import numpy as np

from tilewright.errors import InvalidProblem
from tuner.devices.base import Device
from tuner.regions import Region

_MOST_FILES = 16
_MOST_BYTES = 2 * 2**30
_GRAIN = 2 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class _Mapped:
    """A file from its first byte on, as bytes."""

    fd: int
    array: Any
    pinned: bool
    named: bool

    @property
    def abandoned(self) -> bool:
        """Whoever made it has cut it short or taken its name away: it lives here alone."""
        found = os.fstat(self.fd)
        return found.st_size < len(self.array) or (self.named and found.st_nlink == 0)


class Mappings:
    """Maps regions and pins their memory for a device; keeps the files that were used last.

    NOTE: what is pinned stays what it was, also where its owner punches holes into the file; then only that
    owner's own requests go wrong.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._files: dict[tuple[int, int], _Mapped] = {}  # by device and inode, the last used last

    def array(self, region: Region) -> Any:
        """The bytes of a region as a NumPy array; those of the file itself.

        Raises:
            InvalidProblem: the file ends before the region does.
        """
        end = region.offset + region.size
        fd = os.open(region.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_size < end:
                raise InvalidProblem(f"a tensor ends at byte {end}, behind its memory's end")
            if end > _MOST_BYTES:
                return _map(fd, region.offset, end)
            key = found.st_dev, found.st_ino
            known = self._files.pop(key, None)
            if known and len(known.array) < end:
                self._release(known)
                known = None
            self._files[key] = known or self._new(fd, found, end)
        finally:
            os.close(fd)
        return self._files[key].array[region.offset : end]

    def trim(self) -> None:
        """Let go of what its owner gave up, and of the files that were used the longest ago if there are too
        many."""
        for key in [key for key, known in self._files.items() if known.abandoned]:
            self._release(self._files.pop(key))
        while len(self._files) > _MOST_FILES or sum(len(f.array) for f in self._files.values()) > _MOST_BYTES:
            self._release(self._files.pop(next(iter(self._files))))

    def close(self) -> None:
        """Let go of everything. NOTE: memory that is unmapped while it is pinned goes on to take copies that
        are meant for what is mapped in its place."""
        while self._files:
            self._release(self._files.popitem()[1])

    def _new(self, fd: int, found: os.stat_result, end: int) -> _Mapped:
        array = _map(fd, 0, min(found.st_size, -(-end // _GRAIN) * _GRAIN))
        return _Mapped(os.dup(fd), array, self._device.pin(array), named=found.st_nlink > 0)

    def _release(self, known: _Mapped) -> None:
        if known.pinned:
            self._device.unpin(known.array)
        os.close(known.fd)


def _map(fd: int, offset: int, end: int) -> Any:
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    # NOTE: populated at once: page faults during the kernel would be taken for its time.
    mapped = mmap.mmap(fd, end - start, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=start)
    return np.frombuffer(mapped, np.uint8, end - offset, offset - start)
