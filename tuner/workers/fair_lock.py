"""A lock that is granted in the order of requests."""

from __future__ import annotations

import collections
import threading


class FairLock:
    """A fair mutex: first come, first served, so that a short request waits only for requests before it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Take the lock; False if that takes longer than ``timeout_s`` seconds (None: no limit)."""
        mine = threading.Event()
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            self._waiting.append(mine)
        try:
            if mine.wait(timeout_s):
                return True
        except BaseException:  # such as KeyboardInterrupt: else the lock would go to a thread that left
            if self._withdraw(mine):
                self.release()
            raise
        return self._withdraw(mine)

    def _withdraw(self, mine: threading.Event) -> bool:
        """Stop waiting; True if the lock was handed over before."""
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
