"""Fork safety: replaces locks that another thread held and lost threads; a fork waits for imports in progress
and for the end of threads."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ForkAware(Protocol):
    """An object that :func:`watch` notifies of forks."""

    def after_fork(self) -> None:
        """Called in the child, in which only the forking thread exists."""


_END_S = 1.0  # longest that a fork waits for threads that end

_importing = threading.RLock()
_before_logging = True  # until there are hooks that were registered after those of logging
_ending: set[int] = set()  # native ids of threads with nothing left to run
_watched: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch(one: ForkAware) -> None:
    """Call ``one.after_fork()`` in every forked child, for as long as the object lives."""
    _watched.add(one)


def importing() -> contextlib.AbstractContextManager[object]:
    """A context for imports in a thread of this package: a fork waits for the end of the import.

    Otherwise the child would wait for ever for a module whose import a lost thread had begun.
    """
    global _before_logging
    with _importing:
        if _before_logging:
            # NOTE: hooks run in reverse, and an import may ask for a logger. A fork that held the lock of
            # logging while it waits for that import would wait for ever.
            importlib.import_module("logging")  # takes a tenth of the client's start
            os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release)
            os.register_at_fork(after_in_child=_importing.release)
            _before_logging = False
    return _importing


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread; a fork waits until it is gone once ``target`` has returned.

    NOTE: at the end of a thread, after Python is done with it, OpenSSL removes what it kept for the thread,
    under a lock of the process. A child forked meanwhile would wait for that lock for ever.
    """

    def run() -> None:
        try:
            target()
        finally:
            with _importing:  # not while a fork is under way
                _ending.difference_update(_gone())
                _ending.add(threading.get_native_id())

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class PerProcess(Generic[T]):
    """A value that each process makes for itself on first use, such as connections.

    Attributes:
        made: the value of this process; None before the first use.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock = make, threading.RLock()
        self.made: T | None = None
        watch(self)

    def after_fork(self) -> None:
        """Drop the parent's value. NOTE: it is not closed: another thread may have held one of its locks."""
        self.made, self._lock = None, threading.RLock()

    def get(self) -> T:
        """The value, which the first use creates."""
        with self._lock:
            if self.made is None:
                made = self._make()
                if self.made is None:  # NOTE: a signal handler or a finalizer may have made one meanwhile
                    self.made = made
            return self.made


def _gone() -> list[int]:
    """The threads that were about to end and have ended, as far as the system tells."""
    return [one for one in _ending if not os.path.exists(f"/proc/self/task/{one}")]


def _before() -> None:
    _importing.acquire()
    until = time.monotonic() + _END_S
    while len(_gone()) < len(_ending) and time.monotonic() < until:
        time.sleep(0.0001)
    _ending.difference_update(_gone())


def _reset() -> None:
    for one in list(_watched):
        one.after_fork()


os.register_at_fork(before=_before, after_in_parent=_importing.release)
os.register_at_fork(after_in_child=_importing.release)
os.register_at_fork(after_in_child=_reset)
