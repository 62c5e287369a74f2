"""Timing of one kernel in a trial, at sustained clocks.

A GPU that was idle runs its first milliseconds at clocks it cannot hold, and swings for some seconds around
those it can. What is sampled after :func:`settle` is at sustained clocks.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

from tilewright.launch import Kernel, Launch
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Timing
from tuner.devices.base import Device
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median, median_interval

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


METHOD = "replay-v2"
SAMPLE_US = 3000.0
WARM_UP_S = 0.02
PROBES = 3
PRUNE_RATIO = 1.15
OWN_CLOCK_US = 50_000.0
FEWEST_SAMPLES = 9
MOST_SAMPLES = 31
NARROW = 0.01
_MOST_LAUNCHES = 2048


def measure(
    device: Device,
    kernel: Kernel,
    problem: GemmProblem,
    incumbent_us: float | None,
    fewest: int = FEWEST_SAMPLES,
) -> tuple[Timing, bool]:
    """Time a kernel; the flag is True where it was stopped early as too slow.

    Raises:
        LaunchError: it does not run.
    """
    bound = bind(device, kernel, problem, rotated_sets(device, problem))
    sample = sampler(device, bound.launches, launches_per_sample(device, bound.launches))
    load_us = OWN_CLOCK_US if device.spec.power_watts else 0.0
    samples, pruned = take(sample, incumbent_us, fewest, load_us)
    return timing(device, samples), pruned


def take(
    sample: Callable[[int], float],
    incumbent_us: float | None,
    fewest: int = FEWEST_SAMPLES,
    load_us: float = 0.0,
) -> tuple[list[float], bool]:
    """Samples of one candidate in microseconds, as many as it deserves; True where it was stopped early.

    Where it is not, and ``load_us`` is given, those that count begin after so long.
    """
    samples = [sample(number) for number in range(PROBES)]
    if incumbent_us is not None and median(samples) > PRUNE_RATIO * incumbent_us:
        return samples, True
    first = 0
    if load_us:
        first = PROBES + math.ceil(load_us / max(SAMPLE_US, median(samples)))
        for number in range(PROBES, first):
            sample(number)
        samples = []
    while len(samples) < fewest or (len(samples) < MOST_SAMPLES and not _settled(samples)):
        samples.append(sample(first + len(samples)))
    return samples, False


def launches_per_sample(device: Device, launches: Sequence[Launch]) -> int:
    """How many launches take about ``SAMPLE_US``."""
    probe = device.timer(launches)
    probe()
    return min(max(1, round(SAMPLE_US / max(probe(), 0.1))), _MOST_LAUNCHES)


def sampler(device: Device, launches: Sequence[Launch], count: int) -> Callable[[int], float]:
    """A warmed-up function that takes sample ``i`` of ``count`` launches: microseconds per launch.

    Where one sample does not take all operand sets, the next one goes on; samples of the same number
    take the same sets.
    """
    if count < len(launches):
        parts = [launches[i : i + count] for i in range(0, len(launches) - count + 1, count)]
    else:
        parts = [list(launches) * (count // len(launches))]
    timers = [device.timer(part) for part in parts]
    end = time.monotonic() + WARM_UP_S
    for timer in itertools.cycle(timers):
        timer()
        if time.monotonic() >= end:
            break
    return lambda number: timers[number % len(timers)]()


def timing(device: Device, samples: Sequence[float]) -> Timing:
    """Samples with their median, its confidence interval, and the device's state now."""
    interval = median_interval(samples)
    now = device.telemetry()
    return Timing(tuple(samples), interval.value, interval.low, interval.high, METHOD, now.mhz, now.watts)


def _settled(samples: Sequence[float]) -> bool:
    if len(samples) < FEWEST_SAMPLES:
        return False
    interval = median_interval(samples)
    return interval.high - interval.low < NARROW * interval.value
