"""Segments of shared memory: those that a client keeps between calls, and those that arrays lie in."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.errors import ServiceError
from tilewright.wire.gemm import SEGMENT_PREFIX

_KEPT_BYTES = 2**30
_GRAIN = 2**20
_BUSY = "urn:tilewright:problem:device-busy"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A segment that this process made; its memory stays mapped while an array lies in it.

    Attributes:
        handle: its name; it maps nothing.
        owner: the process that may remove it.
    """

    handle: SharedMemory
    memory: mmap.mmap
    owner: int

    @property
    def name(self) -> str:
        """What the service knows it by."""
        return self.handle.name

    def array(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
        """A NumPy array in it."""
        return np.ndarray(shape, dtype, self.memory, offset)

    def remove(self) -> None:
        """Take its name away; the memory goes with the last array in it."""
        if self.owner == os.getpid():
            with contextlib.suppress(FileNotFoundError):
                self.handle.unlink()


def make(size: int) -> Segment:
    """A new segment.

    Raises:
        OSError: there is not so much shared memory.
    """
    handle = SharedMemory(f"{SEGMENT_PREFIX}{secrets.token_hex(16)}", create=True, size=size)
    handle.close()
    try:
        with open(f"/dev/shm/{handle.name}", "r+b") as file:
            # NOTE: making it reserves nothing; writing beyond what there is would end this process (SIGBUS).
            os.posix_fallocate(file.fileno(), 0, size)
            return Segment(handle, mmap.mmap(file.fileno(), size), os.getpid())
    except BaseException:
        handle.unlink()
        raise


_arrays: dict[int, Segment] = {}  # of :func:`empty`, by address


class Segments:
    """Lends segments and keeps those that come back, 1 GiB at most; safe to share between threads."""

    def __init__(self) -> None:
        self._free: list[Segment] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _remove, self._free)
        forks.watch(self)

    def after_fork(self) -> None:
        """What is kept belongs to the parent."""
        self._lock = threading.Lock()
        self._free.clear()

    @contextlib.contextmanager
    def lend(self, size: int) -> Iterator[Segment]:
        """A segment of ``size`` bytes at least.

        Raises:
            OSError: there is not so much shared memory.
        """
        segment = self._take(size) or make(-(-size // _GRAIN) * _GRAIN)
        try:
            yield segment
        except BaseException as error:
            # NOTE: the device may still write to it unless the service says that it had not begun.
            if isinstance(error, ServiceError) and _not_begun(error):
                self._keep(segment)
            else:
                segment.remove()
            raise
        self._keep(segment)

    def close(self) -> None:
        """Give back what is kept."""
        with self._lock:
            _remove(self._free)

    def _take(self, size: int) -> Segment | None:
        with self._lock:
            fitting = [segment for segment in self._free if len(segment.memory) >= size]
            found = min(fitting, key=lambda segment: len(segment.memory), default=None)
            if found:
                self._free.remove(found)
            return found

    def _keep(self, segment: Segment) -> None:
        with self._lock:
            self._free.append(segment)
            while sum(len(one.memory) for one in self._free) > _KEPT_BYTES:
                self._free.pop(0).remove()


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy array in a segment of its own, which goes with it and its views.

    Raises:
        OSError: there is not so much shared memory.
    """
    segment = make(max(1, math.prod(shape) * np.dtype(dtype).itemsize))
    array = segment.array(shape, dtype)
    _arrays[array.ctypes.data] = segment
    weakref.finalize(array, _forget, array.ctypes.data)
    return array


def place(array: Any) -> tuple[str, int] | None:
    """Name and offset of what :func:`empty` made and of views of it; None for other arrays."""
    address = array.ctypes.data
    for start, segment in list(_arrays.items()):
        if start <= address < start + len(segment.memory):
            return segment.name, address - start
    return None


def _not_begun(error: ServiceError) -> bool:
    return 400 <= error.status < 500 or error.problem.get("type") == _BUSY


def _remove(segments: list[Segment]) -> None:
    while segments:
        segments.pop().remove()


def _forget(address: int) -> None:
    _arrays.pop(address).remove()
