"""What disturbs a race: what others (processes, a hypervisor) take of the device, and a temperature that
slows it; a disturbed race settles nothing.

Other processes do not slow all candidates alike, so ratios within rounds do not cancel them. One process of
the lowest priority on one core made NumPy 3.4 times slower than a kernel that is as fast on a quiet machine:
the threads of NumPy's BLAS give way while they wait for each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterator

from tuner.devices.base import Device


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """The most of one kind that may be taken from a race without disturbing it, and the words for more.

    Attributes:
        counted_to_s: seconds by which the system's count of a race may be off: it counts whole ticks of a
            hundredth of a second.
    """

    most: float
    text: str
    counted_to_s: float = 0.0


LIMITS = {
    "busy": Limit(0.10, "others kept {:.2f} cores busy", counted_to_s=0.02),
    "stolen": Limit(0.05, "the hypervisor took {:.2f} cores", counted_to_s=0.02),
    "waited": Limit(0.05, "it waited for a core for {:.0%} of its time"),
    "gpu": Limit(0.05, "other processes used {:.0%} of the GPU"),
    "slowed": Limit(0.05, "temperature or a power brake slowed the GPU for {:.0%} of its time"),
}


class Interference:
    """Adds up what :meth:`tuner.devices.base.Device.others` tells, over stretches of time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._taken: dict[str, float] = defaultdict(float)
        self._seconds = 0.0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count what others take during the block."""
        before, start = self._device.others(), time.monotonic()
        yield
        self._seconds += time.monotonic() - start
        for kind, taken in self._device.others().items():
            self._taken[kind] += taken - before.get(kind, taken)

    def rates(self) -> dict[str, float]:
        """What others took on average, by kind: cores, or the share of a GPU or of the time."""
        return {kind: max(0.0, taken / self._seconds) for kind, taken in self._taken.items()}

    def reasons(self) -> tuple[str, ...]:
        """Why a race during the watched blocks was disturbed; empty if it was not."""
        rates = self.rates()
        return tuple(
            limit.text.format(rates[kind])
            for kind, limit in LIMITS.items()
            if self._taken.get(kind, 0.0) > limit.most * self._seconds + limit.counted_to_s
        )
