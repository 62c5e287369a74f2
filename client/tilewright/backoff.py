"""``Backoff``: growing pauses between attempts after failures, and the jitter of every pause."""

from __future__ import annotations

import random
import time

FIRST_S = 0.5
LONGEST_S = 60.0
OPENS_AFTER = 5

_RANDOM = random.SystemRandom()  # not the application's generator, and forked processes draw apart


def jitter(low: float, high: float) -> float:
    """Draw a number between the two, and leave the application's seeded ``random`` as it is."""
    return _RANDOM.uniform(low, high)


class Backoff:
    """Counts failures in a row.

    Attributes:
        failures: number of failures in a row.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        """Whether enough attempts failed in a row that the next one must wait for the end of the pause."""
        return self.failures >= OPENS_AFTER and time.monotonic() < self._retry_at

    def succeeded(self) -> None:
        """Note that an attempt succeeded."""
        self.failures = 0

    def failed(self) -> float:
        """Note that an attempt failed and return the seconds to wait.

        The pause doubles with every failure and has full jitter over its upper half, so that clients that
        failed at the same time do not retry at the same time.
        """
        self.failures += 1
        pause = min(LONGEST_S, FIRST_S * 2.0 ** min(self.failures - 1, 20)) * jitter(0.5, 1.0)
        self._retry_at = time.monotonic() + pause
        return pause
