"""Samples of several candidates on one device, interleaved: what drifts hits all alike.

A device at its power limit sets its clock by the power that it draws, and on an H200 follows a change of
kernel within 40 to 80 ms (benchmarks/lab/2026-11-23-hopper.md). Short samples would then give all
candidates the clock of their
mean, and a kernel that needs much energy would run on what the others save. So there a candidate runs for
``SLICE_S`` or longer in its turn, and its sample is the mean of the second half: the clock swings between
steps of one percent, so a median would be one step or the other.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from tilewright.launch import Launch
from tuner.devices.base import Device
from tuner.measure.stats import CONFIDENCE, rounds_needed
from tuner.measure.timing import launches_per_sample, load, sampler

WARM_UP_S = 1.0
SLICE_S = 0.1
AT_LIMIT = 0.95  # of the power that a device may draw
BELOW_TOP = 0.99  # of its highest clock
SLICES_SHARE = 4  # turns are long: one for so many rounds, but enough for an interval where rounds are
THINNING = 3  # turns where rounds are not, and a race only thins out
Rows = list[list[float]]
States = list[tuple[float | None, float | None]]


def equal_samplers(device: Device, candidates: Sequence[Sequence[Launch]]) -> list[Callable[[int], float]]:
    """A sampler for each candidate, all of as many launches as the fastest one needs for a sample.

    Starting a replay costs a little, which more launches would spread thinner.
    """
    count = max(launches_per_sample(device, launches) for launches in candidates)
    return [sampler(device, launches, count) for launches in candidates]


def interleave(
    device: Device, samplers: Sequence[Callable[[int], float]], rounds: int, seed: int
) -> tuple[Rows, States]:
    """Load the device for ``WARM_UP_S`` seconds, then sample: one row of microseconds a sampler, and the
    clock in MHz and power in watts after each round."""
    load(samplers, WARM_UP_S)
    return shuffled_rounds(device, samplers, rounds, random.Random(seed))


def shuffled_rounds(
    device: Device, samplers: Sequence[Callable[[int], float]], rounds: int, order: random.Random
) -> tuple[Rows, States]:
    """As many rounds of one sample of each sampler as :func:`each_round` runs: one row of microseconds a
    sampler, and the clock in MHz and power in watts after each round."""
    rows: Rows = [[] for _ in samplers]
    states: States = []
    for _ in each_round(device, samplers, rounds, order, (rows, states), SLICE_S):
        pass
    return rows, states


def each_round(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    into: tuple[Rows, States],
    turn_s: float,
) -> Iterator[None]:
    """Run one round at each step, into rows and states; the device is under load.

    Each round has a fresh random order. There are ``rounds`` of them; where the device is at its power limit,
    :func:`turns` of ``turn_s`` seconds.
    """
    rows, states = into
    if at_power_limit(device):
        samplers = [_alone(sample, turn_s) for sample in samplers]
        rounds = turns(rounds)
    turn = list(range(len(samplers)))
    for number in range(rounds):
        order.shuffle(turn)
        for index in turn:
            rows[index].append(samplers[index](number))
        now = device.telemetry()
        states.append((now.mhz, now.watts))
        yield


def turns(rounds: int) -> int:
    """How many rounds of turns stand for so many rounds: a quarter, and no fewer than an interval needs
    unless ``rounds`` is fewer too."""
    needed = rounds_needed(CONFIDENCE)
    return max(needed, rounds // SLICES_SHARE) if rounds >= needed else min(rounds, THINNING)


def at_power_limit(device: Device) -> bool:
    """Whether power, not the highest clock, bounds how fast the device runs what it runs now."""
    now, spec = device.telemetry(), device.spec
    at_top = now.mhz is not None and now.mhz >= BELOW_TOP * spec.clock_mhz > 0
    return not at_top and now.watts is not None and now.watts >= AT_LIMIT * spec.power_watts > 0


def _alone(sample: Callable[[int], float], seconds: float) -> Callable[[int], float]:
    """Samples for so long; the mean of those of the second half."""

    def turn(number: int) -> float:
        taken: list[float] = []
        end = time.monotonic() + seconds
        while not taken or time.monotonic() < end:
            taken.append(sample(number + len(taken)))
        return statistics.fmean(taken[len(taken) // 2 :])

    return turn


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of what is not None; None where nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
