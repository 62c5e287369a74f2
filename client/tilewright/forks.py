"""Keeps forked children sound: locks that another thread held, lost threads, half-done imports."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ForkAware(Protocol):
    """An object that :func:`watch` tells about forks."""

    def after_fork(self) -> None:
        """Called in the child, where only the forking thread is left."""


_importing = threading.RLock()
_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(one: ForkAware) -> None:
    """Call ``one.after_fork()`` in every forked child as long as it lives."""
    _watched.add(one)


def importing() -> contextlib.AbstractContextManager[object]:
    """A context for imports that a thread of this package may do: a fork waits for the end of the import.

    Otherwise the child would wait for ever for a module that a lost thread had begun to import.
    """
    return _importing


class PerProcess(Generic[T]):
    """A value that each process makes for itself on first use, such as connections.

    Attributes:
        made: the value of this process; None before the first use.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock = make, threading.Lock()
        self.made: T | None = None
        watch(self)

    def after_fork(self) -> None:
        """Drop the parent's value. NOTE: without closing it: another thread may have held a lock in it."""
        self.made, self._lock = None, threading.Lock()

    def get(self) -> T:
        """The value, made now if this is the first use."""
        with self._lock:
            if self.made is None:
                self.made = self._make()
            return self.made


def _reset() -> None:
    for one in list(_watched):
        one.after_fork()


os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release)
os.register_at_fork(after_in_child=_importing.release)
os.register_at_fork(after_in_child=_reset)
