"""When to ask a service again: jittered, ever longer pauses, and a circuit that opens after many failures."""

from __future__ import annotations

import random
import time

FIRST_S = 0.5
LONGEST_S = 60.0
OPENS_AFTER = 5


class Backoff:
    """Counts failures in a row.

    Attributes:
        failures: in a row.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        """The service failed many times in a row and is not worth asking yet."""
        return self.failures >= OPENS_AFTER and time.monotonic() < self._retry_at

    def succeeded(self) -> None:
        """The service answered."""
        self.failures = 0

    def failed(self) -> float:
        """The service did not answer; gives the seconds to wait: full jitter over the upper half, so that a
        fleet that failed at once does not come back at once."""
        self.failures += 1
        pause = min(LONGEST_S, FIRST_S * 2.0 ** min(self.failures - 1, 20)) * random.uniform(0.5, 1.0)
        self._retry_at = time.monotonic() + pause
        return pause
