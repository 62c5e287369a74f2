"""Races between candidates and the vendor library: interleaved rounds on the same operands.

Every round takes one sample of each candidate in a fresh random order, so that drifting clocks and
temperatures affect all alike; ratios are formed within rounds. At the device's power limit a sample is the
mean of a whole period of the swing (:mod:`tuner.measure.interleave`). If the vendor library does not compute
the problem, it runs the same product in float16 instead, and the result says so. The device is loaded until
its clock has settled before the first round, and again after others used it, and never idles in between, so
the times are sustained ones. A race in bursts (:mod:`tuner.measure.timing`) needs no load, and takes a third
of the time, where power may limit the device; its ratios differ from sustained ones by up to
``BURSTS_TOO_HIGH``.

The vendor library takes part with its algorithms that may be the fastest, which leave when they are left
behind. The one that is the fastest in the end counts, so that a close choice favours the vendor library.

Launches do not overlap the kernel before them, as those of the vendor library do not; a benchmark also times
them *apart*, each after an empty step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import time
from collections.abc import Sequence
from typing import Any

from kernels.limits import memory_bound
from tilewright.launch import Kernel, Launch
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import QUICK_METHOD
from tuner.devices.base import Device, VendorChoice
from tuner.measure.correctness import check_replays
from tuner.measure.interference import Interference
from tuner.measure.interleave import (
    GRAPHS,
    Taken,
    each_round,
    equal_launches,
    equal_samplers,
    in_bursts,
    mean_of_known,
)
from tuner.measure.operands import bind_all, rotated_sets
from tuner.measure.stats import Ratio, speed_ratio
from tuner.measure.timing import of_samples, power_may_limit, settle
from tuner.measure.vendor import (
    fastest_of_every,
    fastest_row,
    forget,
    leading_for,
    probably_fastest,
    remember,
)

METHOD, METHOD_IN_BURSTS = "interleaved-v15, sustained", "interleaved-v15, burst"
# So many times too low and too high is the ratio of the winner of a job at most
# (benchmarks/lab/2026-11-30-quick-ladders.md). That of a kernel that needs far less power than its rival may
# be further off.
BURSTS_TOO_LOW, BURSTS_TOO_HIGH = 1.045, 1.07


@dataclasses.dataclass(frozen=True, slots=True)
class RaceRules:
    """How a race runs.

    Attributes:
        rounds: number of rounds of short samples.
        passes: number of samples of whole periods that replace the rounds if power limits the device
            (:mod:`tuner.measure.interleave`); each takes about a second for each candidate.
        seed: of the order of candidates in each round.
        vendor: whether the vendor library takes part.
        dropping: whether kernels that are left behind leave the race, unless power limits the device, and the
            race ends once one is left.
        quick: whether a few launches choose the vendor library's algorithm before the race.
        every: whether to choose it before the race among all algorithms that the library has, with those that
            it does not propose.
        apart: whether to time each launch after an empty step as well.
        bursts: whether to race in bursts where power may limit the device, instead of passes, and elsewhere
            without loading the device before the first round.
    """

    rounds: int
    seed: int
    passes: int = 2
    vendor: bool = True
    dropping: bool = False
    quick: bool = False
    every: bool = False
    apart: bool = False
    bursts: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RaceSamples:
    """The samples of a race.

    Attributes:
        candidates: digests of the artifacts in the order given, then ``vendor`` if it took part.
        samples_us: one row a candidate, one column a round, in microseconds; shorter rows of those that were
            dropped.
        apart_us: the same rows with each launch apart; empty if that was not asked for.
        vendor_name: the vendor library; empty if it did not take part.
        vendor_detail: attributes of its fastest algorithm.
        mhz, watts: means over the rounds; None if unknown.
        method: name and version of the method.
        periods: whether samples are means of whole periods, as at the power limit.
        interference: what disturbed the race (:mod:`tuner.measure.interference`); empty if nothing did.
        wrong: for each kernel why its timed launches were wrong; empty if all were right.
    """

    candidates: tuple[str, ...]
    samples_us: tuple[tuple[float, ...], ...]
    vendor_name: str
    vendor_detail: dict[str, Any]
    mhz: float | None
    watts: float | None
    method: str
    periods: bool = False
    apart_us: tuple[tuple[float, ...], ...] = ()
    interference: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    def ratio(self, base: int, candidate: int, *, apart: bool = False) -> Ratio:
        """The speed of a candidate relative to another one, both by their row.

        Raises:
            ValueError: there are too few rounds for an interval, or one of the two was dropped.
        """
        rows = self.apart_us if apart else self.samples_us
        found = speed_ratio(rows[base], rows[candidate], self.periods)
        if not self.method.startswith(METHOD_IN_BURSTS):
            return found
        return dataclasses.replace(found, low=found.low / BURSTS_TOO_HIGH, high=found.high * BURSTS_TOO_LOW)


def race(device: Device, kernels: Sequence[Kernel], problem: GemmProblem, rules: RaceRules) -> RaceSamples:
    """The samples of ``kernels`` and, unless ruled out, the fastest algorithm of the vendor library.

    Raises:
        LaunchError: a kernel does not run.
        DeviceUnavailable: the vendor library is missing or has no algorithm for the problem.
    """
    prepared = Race(device, kernels, problem, rules)
    prepared.warm_up()
    prepared.run(math.inf)
    return prepared.samples()


class Race:
    """A race in progress, which runs in parts, so that others may use the device in between.

    With one kernel and the vendor library it is a head-to-head.

    Attributes:
        done: whether every round has run.
    """

    def __init__(
        self, device: Device, kernels: Sequence[Kernel], problem: GemmProblem, rules: RaceRules
    ) -> None:
        """Prepare a race.

        Raises:
            LaunchError, DeviceUnavailable: as :func:`race`.
        """
        self._interference = Interference(device)
        self._sets = rotated_sets(device, problem)
        self._bound = bind_all(device, kernels, problem, self._sets)
        with self._interference.watched():
            self._algorithms = _algorithms(device, problem, rules)
        self._digests = [kernel.artifact.digest for kernel in kernels]
        candidates = [*(one.launches for one in self._bound), *(one.launches for one in self._algorithms)]
        graphs, ways = max(1, min(GRAPHS, rules.rounds)), 1
        self._launches = equal_launches(device, candidates, graphs)
        self._samplers = equal_samplers(device, candidates, graphs, self._launches)
        if rules.apart:
            device.pause()
            apart = [_apart(device, launches) for launches in candidates]
            self._samplers += equal_samplers(device, apart, graphs)
            ways = 2
        self._device, self._problem = device, problem
        self._wrong: tuple[str, ...] = ()
        self._taken = Taken([[] for _ in self._samplers])
        groups = [range(len(kernels), len(candidates))] if self._algorithms else []
        if rules.dropping:
            groups.append(range(len(kernels)))
        competing = [group for group in groups if len(group) > 1]
        self._chooses = rules.vendor and not (rules.quick or rules.every)
        self._clock_matters = not memory_bound(problem, device.spec)
        passes = rules.passes if self._clock_matters else 0
        self._power_matters = passes > 0
        bursts = rules.bursts and power_may_limit(problem, device.spec)
        self._needs_load = not rules.bursts  # benchmarks/lab/2026-11-30-quick-ladders.md
        self._method = (METHOD_IN_BURSTS if bursts else METHOD) + QUICK_METHOD * rules.quick
        self.done = rules.rounds == 0
        # NOTE: with the seed alone the vendor library would come first in every other job's head-to-head.
        order = random.Random(f"{rules.seed} {problem}")
        common = device, self._samplers, rules.rounds, order, self._taken
        if bursts:
            self._rounds = in_bursts(*common)
        else:
            self._rounds = each_round(*common, passes, groups=competing, ends_early=rules.dropping, ways=ways)

    def warm_up(self) -> None:
        """Load the device until its clocks are steady: before the first round, and after others used it, at
        the power limit as long as before."""
        if not self._needs_load:
            return
        with self._interference.watched():
            settle(
                self._device,
                self._samplers,
                power_matters=self._power_matters,
                clock_matters=self._clock_matters,
            )
        self._power_matters = self._taken.periods  # the rounds have begun, or begin now

    def run(self, seconds: float) -> None:
        """Run rounds for ``seconds``, at least one."""
        end = time.monotonic() + seconds
        with self._interference.watched():
            for _ in self._rounds:
                if time.monotonic() >= end:
                    return
        self._wrong = self._wrong_results()
        self.done = True
        if self._interference.reasons():
            forget(self._device, self._problem)  # what was chosen under interference is chosen again
        elif self._chooses:
            remember(self._device, self._problem, self._algorithms[self._fastest_algorithm()])

    def _wrong_results(self) -> tuple[str, ...]:
        """For each kernel why its timed launches are wrong, right after the load of the race; empty if all
        are right."""
        found = list(map(self._why_wrong, range(len(self._bound))))
        return tuple(reason or "" for reason in found) if any(found) else ()

    def _why_wrong(self, kernel: int) -> str | None:
        device, problem, bound = self._device, self._problem, self._bound[kernel]
        parts = len(of_samples(bound.launches, self._launches))
        seen = self._sets[: parts * self._launches]
        # NOTE: what another kernel may have left there would look like this one's fault.
        bound.workspace[: bound.front] = 0

        def replay() -> None:
            for number in range(parts):
                self._samplers[kernel](number)

        wrong = check_replays(device, problem, seen, bound.launches, replay)
        if wrong is None and device.xp.any(bound.workspace[: bound.front]):
            return "it left values other than zero in the workspace, where launches need zeros"
        return wrong

    def _fastest_algorithm(self) -> int:
        """The index of the vendor library's fastest algorithm so far."""
        rows = self._taken.rows[len(self._digests) :][: len(self._algorithms)]
        return fastest_row(rows) if any(rows) else 0

    def samples(self) -> RaceSamples:
        """The samples measured so far."""
        taken, kernels, count = self._taken, len(self._digests), len(self._digests) + len(self._algorithms)
        fastest = self._fastest_algorithm()
        chosen = self._algorithms[fastest] if self._algorithms else None
        shown = [row for row in range(count) if row < kernels or row == kernels + fastest]
        return RaceSamples(
            candidates=(*self._digests, *["vendor"] * bool(chosen)),
            samples_us=tuple(tuple(taken.rows[row]) for row in shown),
            apart_us=tuple(tuple(taken.rows[count + row]) for row in shown) if taken.rows[count:] else (),
            vendor_name=chosen.name if chosen else "",
            vendor_detail=chosen.detail if chosen else {},
            mhz=mean_of_known([mhz for mhz, _ in taken.states]),
            watts=mean_of_known([watts for _, watts in taken.states]),
            method=self._method,
            periods=taken.periods,
            interference=self._interference.reasons(),
            wrong=self._wrong,
        )


def _algorithms(device: Device, problem: GemmProblem, rules: RaceRules) -> Sequence[VendorChoice]:
    """The algorithms of the vendor library that take part."""
    if not rules.vendor:
        return ()
    if rules.every:
        return [fastest_of_every(device, problem)]
    return [probably_fastest(device, problem)] if rules.quick else leading_for(device, problem)


def _apart(device: Device, launches: Sequence[Launch]) -> list[Launch]:
    """The launches, each after an empty step whose time counts as part of the launch."""

    def after_pause(launch: Launch, stream: int = 0) -> None:
        device.pause(stream)
        launch(stream)

    return [functools.partial(after_pause, launch) for launch in launches]
