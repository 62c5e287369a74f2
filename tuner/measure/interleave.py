"""Interleaved samples of several candidates on one device, so that drift affects all alike.

A device at its power limit sets its clock by the power that it draws. An H200 follows a change of kernel
within 40 to 80 ms (benchmarks/lab/2026-11-23-hopper.md). With short samples all candidates would run at one
clock, and a kernel that needs much energy would profit from those that need little. So at the power limit a
candidate runs for ``SLICE_S`` or longer at a time, and its sample is the mean of the second half of that
slice: the clock swings between steps of one percent, so that a median would be one step or the other. What
the memory bounds needs none of that: its time hardly depends on the clock.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from tilewright.launch import Launch
from tuner.devices.base import Device
from tuner.measure.stats import CONFIDENCE, left_behind, rounds_needed
from tuner.measure.timing import (
    WARM_UP_S,
    in_turn,
    keep_busy,
    launches_per_sample,
    loaded,
    of_samples,
    settle,
)

GRAPHS, FEW_GRAPHS = 32, 8  # of a candidate; few where a difference of 1 % decides little
MOST_LAUNCHES = 2**14  # in all graphs of a candidate
SLICE_S = 0.1
AT_LIMIT = 0.95  # of the power that a device may draw
BELOW_TOP = 0.99  # of its highest clock
ROUNDS_PER_SLICE = 4  # slices are long: one for so many rounds, unless an interval needs more
FEWEST_SLICES = 3  # if the rounds are too few for an interval: the race only reduces the candidates
FIRST_LOOK, FIRST_LOOK_AT_SLICES = 4, 2  # rounds before a candidate may be dropped; slices scatter less
Rows = list[list[float]]
States = list[tuple[float | None, float | None]]
Groups = Sequence[Sequence[int]]  # of candidates, by index


def equal_samplers(
    device: Device, candidates: Sequence[Sequence[Launch]], graphs: int = GRAPHS
) -> list[Callable[[int], float]]:
    """A sampler for each candidate, all with the number of launches that the fastest one needs for a sample.

    Starting a replay has a cost that more launches would spread thinner, so all have the same number. Samples
    take turns among so many ``graphs``; capturing one takes a device some milliseconds.
    """
    count = max(launches_per_sample(device, launches) for launches in candidates)
    timers = _captured(device, [_again(of_samples(launches, count), graphs) for launches in candidates])
    samplers = [in_turn(of_candidate) for of_candidate in timers]
    keep_busy(samplers, WARM_UP_S * len(samplers))
    return samplers


def _again(parts: Sequence[Sequence[Launch]], graphs: int) -> list[Sequence[Launch]]:
    """The parts so many times, or fewer if these would be too many launches.

    Two graphs of the same launches differ in time by up to 0.8 % for as long as they live, so that a race of
    one graph with another asks which lies better (benchmarks/lab/2026-11-27-graphs.md).
    """
    return [*parts] * max(1, min(graphs, MOST_LAUNCHES // sum(map(len, parts))))


def _captured(device: Device, parts: Sequence[Sequence[Sequence[Launch]]]) -> list[list[Callable[[], float]]]:
    """A timer for each part of each candidate, captured by turns: graphs of the same number lie side by side,
    and were captured equally long ago."""
    timers: list[list[Callable[[], float]]] = [[] for _ in parts]
    for number in range(max(map(len, parts))):
        for candidate in range(len(parts))[:: -1 if number % 2 else 1]:
            if number < len(parts[candidate]):
                timers[candidate].append(device.timer(parts[candidate][number]))
    return timers


def interleave(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    seed: int,
    groups: Groups = (),
    *,
    slice_s: float = SLICE_S,
) -> tuple[Rows, States]:
    """:func:`shuffled_rounds` after loading the device until its clock has settled."""
    settle(device, samplers, power_matters=slice_s > 0)
    return shuffled_rounds(device, samplers, rounds, random.Random(seed), groups, slice_s=slice_s)


def shuffled_rounds(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    groups: Groups = (),
    *,
    slice_s: float = SLICE_S,
) -> tuple[Rows, States]:
    """One row of microseconds for each sampler, and the clock in MHz and power in watts after each round.

    Runs the rounds of :func:`each_round`.
    """
    rows: Rows = [[] for _ in samplers]
    states: States = []
    for _ in each_round(device, samplers, rounds, order, (rows, states), slice_s, groups=groups):
        pass
    return rows, states


def each_round(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    into: tuple[Rows, States],
    slice_s: float,
    *,
    groups: Groups = (),
    ways: int = 1,
) -> Iterator[None]:
    """Run one round at each step, and append its samples and the device's state to ``into``.

    The device is under load. Every second round has a fresh random order, the one after it the reverse, so
    that none is ahead of another more often. There are ``rounds`` of them or, at the power limit of the
    device, :func:`slices` with turns of ``slice_s`` seconds, unless that is 0. The
    candidates of a group compete: those that are left behind take no part in the rounds that follow, so that
    their rows are shorter. Once one of each group remains, there is one round more.

    Args:
        samplers: one for each candidate; if its launches are timed in several ``ways``, those of all
            candidates for the first way come first. A turn has a sample of each way.
    """
    rows, states = into
    first_look, count = FIRST_LOOK, len(samplers) // ways
    first_of_turn = later_of_turn = list(samplers)
    if slice_s and at_power_limit(device):
        half = slice_s / 2
        first_of_turn = [_sliced(sample, half, half / ways) for sample in samplers]
        later_of_turn = [_sliced(sample, 0.0, half / ways) for sample in samplers]
        rounds, first_look = slices(rounds), FIRST_LOOK_AT_SLICES
    competing = [list(group) for group in groups]
    others = sorted(set(range(count)).difference(*competing))
    sequence: list[int] = []
    for number in range(rounds):
        left = [*itertools.chain(*competing), *others]
        if number % 2:
            sequence = [candidate for candidate in reversed(sequence) if candidate in left]
        else:
            sequence = left
            order.shuffle(sequence)
        # NOTE: the clock has settled for the way that comes first, so they take turns at that.
        places = range(0, len(samplers), count)[:: -1 if number // 2 % 2 else 1]
        for candidate in sequence:
            for place in places:
                timed = first_of_turn if place == places[0] else later_of_turn
                rows[candidate + place].append(timed[candidate + place](number))
        now = device.telemetry()
        states.append((now.mhz, now.watts))
        loaded(device)
        yield
        if competing and all(len(group) == 1 for group in competing):
            return
        if first_look <= number + 1 < rounds:
            competing = [_still_competing(group, rows) for group in competing]


def _still_competing(group: list[int], rows: Rows) -> list[int]:
    left = left_behind([rows[index] for index in group])
    return [index for index, gone in zip(group, left, strict=True) if not gone]


def slices(rounds: int) -> int:
    """The number of rounds of slices that replace ``rounds`` rounds of short samples.

    A quarter, but no fewer than a confidence interval needs; if ``rounds`` is fewer than that, 3 at most.
    """
    needed = rounds_needed(CONFIDENCE)
    return max(needed, rounds // ROUNDS_PER_SLICE) if rounds >= needed else min(rounds, FEWEST_SLICES)


def at_power_limit(device: Device) -> bool:
    """Whether power, not the highest clock, limits the kernels that run on the device now."""
    now, spec = device.telemetry(), device.spec
    at_top = now.mhz is not None and now.mhz >= BELOW_TOP * spec.clock_mhz > 0
    return not at_top and now.watts is not None and now.watts >= AT_LIMIT * spec.power_watts > 0


def _sliced(sample: Callable[[int], float], settle_s: float, seconds: float) -> Callable[[int], float]:
    """A sampler that runs for ``settle_s``, then for ``seconds``, and returns the mean of the samples that
    began in these, or the last one if none did."""

    def timed_slice(number: int) -> float:
        taken: list[float] = []
        started, launched, settled = time.monotonic(), 0, False
        while not taken or time.monotonic() < started + settle_s + seconds:
            if not settled:
                taken.clear()
                settled = time.monotonic() >= started + settle_s
            taken.append(sample(number + launched))
            launched += 1
        return statistics.fmean(taken)

    return timed_slice


def finishers(rows: Sequence[Sequence[float]]) -> list[int]:
    """The candidates that took part to the end."""
    most = max(map(len, rows))
    return [index for index, row in enumerate(rows) if len(row) == most]


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
