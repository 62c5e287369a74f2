"""How long a kernel takes: method ``replay-v2``.

Launches take the rotated operand sets in turn, so that inputs come from memory and not from the
last-level cache. A sample is one replay of enough launches to last about ``SAMPLE_US``, one at
least (on CUDA a graph, timed with events), divided by their number. After a warm-up, three probes
decide whether the candidate is clearly slower than the incumbent; if not, samples are taken until
the confidence interval of the median is narrow or ``MOST_SAMPLES`` are there. On a device with a power limit
the candidate runs for ``OWN_CLOCK_US`` before they count: until then it has the clock that a rest or the
candidate before left it, up to 15 % off (docs/hopper.md). Raw samples are kept.
Clock and power are read while the device is still warm from the last sample.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

from tilewright.launch import Kernel, Launch
from tilewright.problem import GemmProblem
from tilewright.trial import Timing
from tuner.devices.base import Device
from tuner.operands import bind, rotated_sets
from tuner.stats import median, median_interval

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
    take the same sets, whoever runs them.
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
