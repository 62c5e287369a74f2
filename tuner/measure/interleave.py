"""Interleaved samples of several candidates on one device, so that drift affects all alike.

A GPU at its power limit sets its clock by the power that it draws. On an H100 clock and times swing with a
period of one second, a kernel of 198 us between 186 and 220 us, while the mean of a second stays within half
a percent (benchmarks/lab/2026-11-27-power-swing.md). An H200 follows a change of kernel within 40 to 80 ms
(benchmarks/lab/2026-11-23-hopper.md). With short samples all candidates would run at one clock, and a kernel
that needs much energy would profit from those that need little. So at the power limit a candidate runs until
the clock is its own, and a sample is the mean of a whole period. Memory-bound kernels need none of that:
their time hardly depends on the clock.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence

from tilewright.launch import Launch
from tuner.devices.base import Device, Telemetry
from tuner.measure.stats import left_behind
from tuner.measure.timing import (
    BURST_S,
    REST_S,
    WARM_UP_S,
    at_power_limit,
    idle_s,
    in_turn,
    keep_busy,
    launches_per_sample,
    loaded,
    of_samples,
    settle,
)

# A fourth would rarely win (benchmarks/lab/2026-11-28-shorter-races.md). At the power limit each costs a
# second, and a third gains 0.06 % (benchmarks/lab/2026-11-29-seconds-of-races.md).
MOST_IN_A_RACE, MOST_AT_POWER_LIMIT = 3, 2  # kernels, and algorithms of the vendor library
GRAPHS, FEW_GRAPHS = 48, 8  # of a candidate at most; few where a difference of 1 % decides little
MOST_LAUNCHES = 2**14  # in all graphs of a candidate
PERIOD_S = 1.0  # of the swing at the power limit
OWN_CLOCK_S = 0.085  # until the clock is that of the candidate
FIRST_LOOK = 4  # rounds before a candidate may be dropped
Rows = list[list[float]]
States = list[tuple[float | None, float | None]]
Groups = Sequence[Sequence[int]]  # of candidates, by index


@dataclasses.dataclass(slots=True)
class Taken:
    """What was measured.

    Attributes:
        rows: microseconds, one row for each sampler.
        states: clock in MHz and power in watts of the device after each step.
        periods: whether a sample is the mean of a whole period, as at the power limit.
    """

    rows: Rows
    states: States = dataclasses.field(default_factory=list)
    periods: bool = False


def equal_launches(device: Device, candidates: Sequence[Sequence[Launch]], graphs: int = GRAPHS) -> int:
    """The number of launches that the fastest candidate needs for a sample, for all of them.

    Starting a replay has a cost that more launches would spread thinner. Below 9 us (of 48 graphs) a sample
    has fewer launches than 3 ms take, so that each candidate has its graphs.
    """
    enough = max(launches_per_sample(device, launches) for launches in candidates)
    return min(enough, max(1, MOST_LAUNCHES // graphs))


def equal_samplers(
    device: Device, candidates: Sequence[Sequence[Launch]], graphs: int = GRAPHS, count: int = 0
) -> list[Callable[[int], float]]:
    """A sampler for each candidate, all with ``count`` launches a sample, by default :func:`equal_launches`.

    Samples cycle through ``graphs`` graphs, in a race one for each round: rounds that share a graph are not
    independent. A device takes some milliseconds to capture one.
    """
    count = count or equal_launches(device, candidates, graphs)
    timers = _captured(device, [_again(of_samples(launches, count), graphs) for launches in candidates])
    samplers = [in_turn(of_candidate) for of_candidate in timers]
    keep_busy(samplers, WARM_UP_S * len(samplers))
    return samplers


def _again(parts: Sequence[Sequence[Launch]], graphs: int) -> list[Sequence[Launch]]:
    """The parts repeated ``graphs`` times, or fewer if these would be too many launches, as those of hundreds
    of operand sets would be.

    Two graphs of the same launches differ in time by up to 0.8 % for as long as they live, so that a race
    between two single graphs measures which graph lies better (benchmarks/lab/2026-11-27-graphs.md).
    """
    return [*parts] * max(1, min(graphs, MOST_LAUNCHES // sum(map(len, parts))))


def _captured(device: Device, parts: Sequence[Sequence[Sequence[Launch]]]) -> list[list[Callable[[], float]]]:
    """A timer for each part of each candidate. Candidates are captured in alternation, so that graphs of the
    same number lie side by side and are of the same age."""
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
    passes: int = 1,
) -> Taken:
    """:func:`shuffled_rounds` after loading the device until its clock has settled."""
    settle(device, samplers, power_matters=passes > 0)
    return shuffled_rounds(device, samplers, rounds, random.Random(seed), groups, passes=passes)


def shuffled_rounds(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    groups: Groups = (),
    *,
    passes: int = 1,
) -> Taken:
    """What the rounds of :func:`each_round` measure."""
    taken = Taken([[] for _ in samplers])
    for _ in each_round(device, samplers, rounds, order, taken, passes, groups=groups):
        pass
    return taken


def each_round(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    into: Taken,
    passes: int,
    *,
    groups: Groups = (),
    ends_early: bool = True,
    ways: int = 1,
) -> Iterator[None]:
    """Run rounds, and add their samples and states of the device to ``into``; others may use the device after
    each step.

    The device is under load from the first step on. In a round, whose order is random, each candidate has one
    sample in each way. The candidates of a group compete: those that are left behind take no part in the
    rounds that follow, so that their rows are shorter. If the race ``ends_early``, there is one round more
    once one of each group remains. At the power limit of the device, unless ``passes`` is 0, there are as
    many passes instead: a sample of a whole period, about a second, of each candidate, of which none leaves.
    If power limits the device only after some rounds, these are forgotten and the passes begin, with all
    candidates.

    Args:
        samplers: one for each candidate; if its launches are timed in several ``ways``, those of all
            candidates for the first way come first.
    """
    race = _RaceRounds(device, samplers, into, ways, groups, ends_early, order)
    # NOTE: only under load does the device tell whether power limits it, and some devices only after a while.
    if not (passes and at_power_limit(device.telemetry(), device.spec)):
        limited = yield from race.short_samples(rounds, up_to_limit=passes > 0)
        if not limited:
            return
    yield from race.whole_periods(passes)


def in_bursts(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    into: Taken,
) -> Iterator[None]:
    """Run rounds of one short sample of each candidate, in random order and at the clock of a device that
    rested: after each rest as many rounds as fit into a burst (:mod:`tuner.measure.timing`). Samples and
    states of the device are added to ``into``; others may use it after each burst."""
    candidates, ends, last_s = list(range(len(samplers))), -math.inf, 0.0
    for number in range(rounds):
        began = time.monotonic()
        if began + last_s > ends:
            if number:
                yield
            time.sleep(REST_S)
            began = time.monotonic()
            ends = began + BURST_S
        order.shuffle(candidates)
        for candidate in candidates:
            into.rows[candidate].append(samplers[candidate](number))
        last_s = time.monotonic() - began
        # Power is reported as the mean of a second, with the rests.
        into.states.append((device.telemetry().mhz, None))


class _RaceRounds:
    """The candidates of a race, those that are still in it, and what was measured; each of the two ways to
    run it gives the steps between which others may use the device."""

    def __init__(
        self,
        device: Device,
        samplers: Sequence[Callable[[int], float]],
        into: Taken,
        ways: int,
        groups: Groups,
        ends_early: bool,
        order: random.Random,
    ) -> None:
        self._device, self._samplers, self._order = device, samplers, order
        self._ends_early = ends_early and bool(groups)
        self._taken = into
        self._count = len(samplers) // ways
        self._groups = groups
        self._competing = [list(group) for group in groups]
        self._others = sorted(set(range(self._count)).difference(*groups))
        self._numbers = [itertools.count() for _ in samplers]

    def short_samples(self, rounds: int, *, up_to_limit: bool) -> Generator[None, None, bool]:
        """Rounds of one short sample; a candidate that is left behind leaves.

        Returns:
            Whether it ended because power limits the device now. Without ``up_to_limit`` it never does.
        """
        for number in range(rounds):
            if up_to_limit:
                self._load_again()
            for candidate in self._next_order():
                for way in self._ways(candidate):
                    self._taken.rows[way].append(self._samplers[way](number))
            now = self._note()
            yield
            if up_to_limit and at_power_limit(now, self._device.spec):
                return True
            if self._ends_early and all(len(group) == 1 for group in self._competing):
                break
            if FIRST_LOOK <= number + 1 < rounds:
                self._drop()
        return False

    def whole_periods(self, passes: int) -> Iterator[None]:
        """Rounds of one period, which begins once the clock is the candidate's own. What was measured before
        is forgotten, and those that left take part again."""
        for row in self._taken.rows:
            row.clear()
        self._taken.states.clear()
        self._taken.periods = True
        self._competing = [list(group) for group in self._groups]
        order = list[int]()
        for number in range(passes):
            order = order[::-1] if number % 2 else self._next_order()  # a drift counts for all alike
            for candidate in order:
                for way in self._ways(candidate):
                    self._keep_running(way, time.monotonic() + OWN_CLOCK_S)
                    self._taken.rows[way].append(self._mean_until(way, time.monotonic() + PERIOD_S))
                self._note()
                yield

    def _ways(self, candidate: int) -> range:
        return range(candidate, len(self._samplers), self._count)

    def _next_order(self) -> list[int]:
        """The candidates that take part in the next round, in random order."""
        left = [*itertools.chain(*self._competing), *self._others]
        self._order.shuffle(left)
        return left

    def _drop(self) -> None:
        for group in self._competing:
            left = left_behind([self._taken.rows[index] for index in group])
            group[:] = [index for index, gone in zip(group, left, strict=True) if not gone]

    def _keep_running(self, way: int, until: float) -> None:
        while time.monotonic() < until:
            self._samplers[way](next(self._numbers[way]))

    def _mean_until(self, way: int, ends: float) -> float:
        """The mean of the samples that begin before ``ends``, one at least."""
        taken = [self._samplers[way](next(self._numbers[way]))]
        while time.monotonic() < ends:
            taken.append(self._samplers[way](next(self._numbers[way])))
        return statistics.fmean(taken)

    def _load_again(self) -> None:
        """Load a device that rested, while NVML or the process that runs the race took long to answer: its
        next samples would be a burst at the highest clock."""
        if self._device.spec.power_watts and idle_s(self._device) >= REST_S:
            settle(self._device, self._samplers, power_matters=False)

    def _note(self) -> Telemetry:
        """Note that the device was under load until now, and its clock and power."""
        loaded(self._device)
        now = self._device.telemetry()
        self._taken.states.append((now.mhz, now.watts))
        return now


def finishers(rows: Sequence[Sequence[float]]) -> list[int]:
    """The candidates that took part to the end."""
    most = max(map(len, rows))
    return [index for index, row in enumerate(rows) if len(row) == most]


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
