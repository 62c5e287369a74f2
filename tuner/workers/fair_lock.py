"""A lock that is granted in the order it was asked for."""

from __future__ import annotations

import collections
import threading


class FairLock:
    """A fair mutex: first come, first served, so that a short request waits for at most the calls
    that were there before it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Take the lock; False if its turn did not come within ``timeout_s`` seconds (None: wait)."""
        mine = threading.Event()
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            self._waiting.append(mine)
        if mine.wait(timeout_s):
            return True
        with self._guard:
            if mine.is_set():
                return True
            self._waiting.remove(mine)
            return False

    def release(self) -> None:
        """Hand the lock to the thread that has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
