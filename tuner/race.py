"""Finalists and the vendor library against each other: interleaved rounds on the same operands.

Every round takes one sample of each contender in a fresh random order, so that drifting clocks and
temperatures hit all alike; ratios are formed within rounds. Where the vendor library does not compute
the problem, it runs the same product in float16 instead, and says so. The device is loaded for ``WARM_UP_S``
before the first round, and again after others used it, and never idles in between, so the figures are
sustained ones.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright.errors import DeviceUnavailable
from tilewright.launch import Kernel, Launch
from tilewright.problem import DType, GemmProblem
from tilewright.trial import STANDS_IN
from tuner.devices.base import Device, VendorChoice
from tuner.measure import launches_per_sample, sampler
from tuner.operands import bind, rotated_sets, scratch
from tuner.settle import load
from tuner.stats import median

METHOD = "interleaved-v1, sustained"
WARM_UP_S = 1.0
Rows = list[list[float]]
States = list[tuple[float | None, float | None]]
_HEAT_ROUNDS = 5
_SCREENS = ((48, 200.0), (12, 1000.0))  # how many stay, after so many microseconds of each
_SCREEN_RATIO = 1.25
_STAND_IN_OUT = {2: DType.FLOAT16, 4: DType.FLOAT32}  # by bytes of an element of D


@dataclasses.dataclass(frozen=True, slots=True)
class RaceSamples:
    """What a race measured.

    Attributes:
        contenders: digests of the artifacts in the order given, then ``vendor`` where it took part.
        samples_us: one row a contender, one column a round, in microseconds.
        vendor_name: which library, empty where none took part; ``vendor_detail``: the algorithm it won its
            own heat with.
        mhz, watts: mean over the rounds; None where unknown.
        method: name and version.
    """

    contenders: tuple[str, ...]
    samples_us: tuple[tuple[float, ...], ...]
    vendor_name: str
    vendor_detail: dict[str, Any]
    mhz: float | None
    watts: float | None
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RaceSamples:
        """The inverse of :meth:`to_dict`."""
        rows = tuple(tuple(row) for row in data["samples_us"])
        return cls(**{**data, "contenders": tuple(data["contenders"]), "samples_us": rows})


def race(
    device: Device, kernels: Sequence[Kernel], problem: GemmProblem, rounds: int, seed: int
) -> RaceSamples:
    """Race ``kernels`` and the best algorithm of the vendor library over ``rounds`` rounds.

    Raises:
        LaunchError: a kernel does not run.
        DeviceUnavailable: the vendor library is missing or has no algorithm for the problem.
    """
    contest = Race(device, kernels, problem, rounds, seed)
    contest.heat()
    contest.run(math.inf)
    return contest.samples()


class Race:
    """A race in progress: prepared once, then run in slices, so that others may use the device in between.

    Attributes:
        done: every round was run.
    """

    def __init__(
        self,
        device: Device,
        kernels: Sequence[Kernel],
        problem: GemmProblem,
        rounds: int,
        seed: int,
        *,
        vendor: bool = True,
    ) -> None:
        """Prepare it, with or without the vendor library.

        Raises:
            LaunchError, DeviceUnavailable: as :func:`race`.
        """
        sets = rotated_sets(device, problem)
        shared = scratch(device, kernels, problem)
        self._bound = [bind(device, kernel, problem, sets, shared) for kernel in kernels]
        self._vendor = fastest(device, vendor_choices(device, problem)) if vendor else None
        guests = [self._vendor.launches] if self._vendor else []
        self._samplers = equal_samplers(device, [*(one.launches for one in self._bound), *guests])
        self._contenders = (*(kernel.artifact.digest for kernel in kernels), *["vendor"] * vendor)
        self._rows: Rows = [[] for _ in self._samplers]
        self._states: States = []
        order = random.Random(seed)
        self._rounds = _each_round(device, self._samplers, rounds, order, (self._rows, self._states))
        self.done = rounds == 0

    def heat(self) -> None:
        """Load the device until its clocks stand: before the first round, and after others used it."""
        load(self._samplers, WARM_UP_S)

    def run(self, seconds: float) -> None:
        """Run rounds for so long, one at least."""
        end = time.monotonic() + seconds
        for _ in self._rounds:
            if time.monotonic() >= end:
                return
        self.done = True

    def samples(self) -> RaceSamples:
        """What was measured."""
        return RaceSamples(
            contenders=self._contenders,
            samples_us=tuple(tuple(row) for row in self._rows),
            vendor_name=self._vendor.name if self._vendor else "",
            vendor_detail=self._vendor.detail if self._vendor else {},
            mhz=mean_of_known([mhz for mhz, _ in self._states]),
            watts=mean_of_known([watts for _, watts in self._states]),
            method=METHOD,
        )


def equal_samplers(device: Device, entrants: Sequence[Sequence[Launch]]) -> list[Callable[[int], float]]:
    """A sampler for each entrant, all of as many launches as the fastest one needs for a sample.

    Starting a replay costs a little, which more launches would spread thinner.
    """
    count = max(launches_per_sample(device, launches) for launches in entrants)
    return [sampler(device, launches, count) for launches in entrants]


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
    """``rounds`` rounds of one sample of each sampler, in a fresh random order: one row of microseconds a
    sampler, and the clock in MHz and power in watts after each round."""
    rows: Rows = [[] for _ in samplers]
    states: States = []
    for _ in _each_round(device, samplers, rounds, order, (rows, states)):
        pass
    return rows, states


def _each_round(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    into: tuple[Rows, States],
) -> Iterator[None]:
    """Run one round at each step, into rows and states."""
    rows, states = into
    turn = list(range(len(samplers)))
    for number in range(rounds):
        order.shuffle(turn)
        for index in turn:
            rows[index].append(samplers[index](number))
        now = device.telemetry()
        states.append((now.mhz, now.watts))
        yield


def fastest(device: Device, choices: Sequence[VendorChoice]) -> VendorChoice:
    """The choice with the lowest median of a few interleaved samples, among those that a quick look at
    each did not rule out."""
    if len(choices) == 1:
        return choices[0]
    choices = _screened(device, choices)
    samplers = equal_samplers(device, [choice.launches for choice in choices])
    rows, _ = shuffled_rounds(device, samplers, _HEAT_ROUNDS, random.Random(0))
    return choices[min(range(len(choices)), key=lambda i: median(rows[i]))]


def _screened(device: Device, choices: Sequence[VendorChoice]) -> Sequence[VendorChoice]:
    """The first choice and the quickest others: each is looked at for a little while, then the quickest
    of these for longer; whoever takes 25 % more than the quickest is out."""
    probe = device.timer(choices[0].launches)
    probe()
    first_us = max(probe(), 0.1)
    for kept, glance_us in _SCREENS:
        if len(choices) > kept:
            count = max(1, round(glance_us / first_us))
            quick = [_glance(device, choice.launches[:count]) for choice in choices]
            ranked = sorted(range(1, len(choices)), key=lambda i: quick[i])[: kept - 1]
            limit = _SCREEN_RATIO * min(quick)
            choices = [choices[0], *(choices[i] for i in ranked if quick[i] <= limit)]
    return choices


def _glance(device: Device, launches: Sequence[Launch]) -> float:
    """The quicker of two runs of launches, after one that does not count: microseconds of a launch."""
    sample = device.timer(launches)
    sample()
    return min(sample(), sample())


def vendor_choices(device: Device, problem: GemmProblem) -> list[VendorChoice]:
    """The algorithms of the vendor library, the one it would take itself first.

    Raises:
        DeviceUnavailable: the library is missing or has no algorithm for the problem.
    """
    choices = device.vendor(problem, rotated_sets(device, problem)) or _stand_ins(device, problem)
    if not choices:
        raise DeviceUnavailable(f"the vendor library proposes no algorithm for {problem}")
    return choices


def _stand_ins(device: Device, problem: GemmProblem) -> list[VendorChoice]:
    """What one would run for operands of 8 bits and fewer without a kernel of their own: float16, which
    holds all of their values. The conversion is not timed."""
    if problem.dtype.bits > 8:
        return []
    wide = dataclasses.replace(
        problem, dtype=DType.FLOAT16, acc_dtype=DType.FLOAT32, out_dtype=_STAND_IN_OUT[problem.out.size]
    )
    return [
        dataclasses.replace(
            choice, name=f"{choice.name} float16", detail=choice.detail | {STANDS_IN: problem.dtype.value}
        )
        for choice in device.vendor(wide, rotated_sets(device, wide))
    ]


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of what is not None; None where nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
