"""``Idempotency-Key``: one name for one request of one caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service.problems import Kind, Problem


class InFlight:
    """The idempotency keys of requests that are in work; safe to share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold a key for the length of a request.

        Raises:
            Problem: another request holds it.
        """
        with self._lock:
            if key in self._keys:
                detail = "a request with this Idempotency-Key is in work; ask again for its answer"
                raise Problem(Kind.IDEMPOTENCY_IN_FLIGHT, detail, retry_after=1)
            self._keys.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._keys.discard(key)
