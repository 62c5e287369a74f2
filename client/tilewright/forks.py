"""Fork safety: replaces locks that another thread held and lost threads; protects imports in progress."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ForkAware(Protocol):
    """An object that :func:`watch` notifies of forks."""

    def after_fork(self) -> None:
        """Called in the child, in which only the forking thread exists."""


_importing = threading.RLock()
_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(one: ForkAware) -> None:
    """Call ``one.after_fork()`` in every forked child, for as long as the object lives."""
    _watched.add(one)


def importing() -> contextlib.AbstractContextManager[object]:
    """A context for imports in a thread of this package: a fork waits for the end of the import.

    Otherwise the child would wait for ever for a module whose import a lost thread had begun.
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
        """Drop the parent's value. NOTE: it is not closed: another thread may have held one of its locks."""
        self.made, self._lock = None, threading.Lock()

    def get(self) -> T:
        """The value, which the first use creates."""
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
