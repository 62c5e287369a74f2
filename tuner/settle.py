"""Loading a device until its clock holds still.

A GPU that was idle runs its first milliseconds at clocks it cannot hold, and swings for some seconds around
those it can. What is sampled after :func:`settle` is at sustained clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tuner.devices.base import Device

SLICE_S = 0.1
FEWEST, MOST = 8, 30  # slices
STEADY = 0.01
_HALF = 4  # slices that a mean is taken over


def settle(device: Device, samplers: Sequence[Callable[[int], float]]) -> bool | None:
    """Keep the device busy with ``samplers`` for 0.8 to 3 s, until its clock is steady.

    Steady is a clock whose mean over the last 0.4 s is within 1 % of that over the 0.4 s before. True
    where it came to that, False where it never did, None where the device does not tell its clock.
    """
    clocks: list[float | None] = []
    while len(clocks) < MOST and not (len(clocks) >= FEWEST and _steady(clocks) is not False):
        load(samplers, SLICE_S)
        clocks.append(device.telemetry().mhz)
    return _steady(clocks)


def load(samplers: Sequence[Callable[[int], float]], seconds: float) -> None:
    """Keep the device busy for ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for sample in samplers:
            sample(0)


def _steady(clocks: Sequence[float | None]) -> bool | None:
    known = [mhz for mhz in clocks[-2 * _HALF :] if mhz is not None]
    if len(known) < 2 * _HALF:
        return None
    before, now = sum(known[:_HALF]), sum(known[_HALF:])
    return abs(now - before) <= STEADY * before
