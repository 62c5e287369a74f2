"""Candidates and the vendor library against each other: interleaved rounds on the same operands.

Every round takes one sample of each candidate in a fresh random order, so that drifting clocks and
temperatures hit all alike; ratios are formed within rounds. At the device's power limit a sample lasts
until the clock is the candidate's own (:mod:`tuner.measure.interleave`). Where the vendor library does not
compute
the problem, it runs the same product in float16 instead, and says so. The device is loaded for ``WARM_UP_S``
before the first round, and again after others used it, and never idles in between, so the figures are
sustained ones.

A kernel that may start while the one before it ends (programmatic dependent launch) looks faster in a
stream of its own launches than between kernels of others. So its head_to_head with the vendor library is
run in both ways, in the same rounds: launches back to back, and *apart*, each after a step that does nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import time
from collections.abc import Sequence
from typing import Any

from tilewright.artifact import Artifact
from tilewright.launch import Kernel, Launch
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Device
from tuner.measure.interleave import WARM_UP_S, Rows, States, each_round, equal_samplers, mean_of_known
from tuner.measure.operands import bind, rotated_sets, scratch
from tuner.measure.timing import load
from tuner.measure.vendor import fastest_for

METHOD = "interleaved-v4, sustained"
RACE_SLICE_S = 0.2  # at the power limit: 0.1 s until the clock is the candidate's own, 0.1 s that count


@dataclasses.dataclass(frozen=True, slots=True)
class RaceSamples:
    """What a race measured.

    Attributes:
        candidates: digests of the artifacts in the order given, then ``vendor`` where it took part.
        samples_us: one row a candidate, one column a round, in microseconds.
        apart_us: the same rows of a head_to_head of launches that overlap, each launch apart; empty for
        other races.
        vendor_name: which library, empty where none took part; ``vendor_detail``: the algorithm it won its
            own heat with.
        mhz, watts: mean over the rounds; None where unknown.
        method: name and version.
    """

    candidates: tuple[str, ...]
    samples_us: tuple[tuple[float, ...], ...]
    vendor_name: str
    vendor_detail: dict[str, Any]
    mhz: float | None
    watts: float | None
    method: str
    apart_us: tuple[tuple[float, ...], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RaceSamples:
        """The inverse of :meth:`to_dict`."""
        rows = {name: tuple(map(tuple, data[name])) for name in ("samples_us", "apart_us")}
        return cls(**{**data, "candidates": tuple(data["candidates"]), **rows})


def race(
    device: Device,
    kernels: Sequence[Kernel],
    problem: GemmProblem,
    rounds: int,
    seed: int,
    turn_s: float = RACE_SLICE_S,
) -> RaceSamples:
    """Race ``kernels`` and the best algorithm of the vendor library over ``rounds`` rounds, in turns of
    ``turn_s`` seconds at the power limit.

    Raises:
        LaunchError: a kernel does not run.
        DeviceUnavailable: the vendor library is missing or has no algorithm for the problem.
    """
    contest = Race(device, kernels, problem, rounds, seed, turn_s=turn_s)
    contest.heat()
    contest.run(math.inf)
    return contest.samples()


class Race:
    """A race in progress: prepared once, then run in slices, so that others may use the device in between.

    With one kernel and the vendor library it is a head_to_head.

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
        turn_s: float = RACE_SLICE_S,
    ) -> None:
        """Prepare it, with or without the vendor library; ``turn_s`` as for :func:`race`.

        Raises:
            LaunchError, DeviceUnavailable: as :func:`race`.
        """
        sets = rotated_sets(device, problem)
        shared = scratch(device, kernels, problem)
        self._bound = [bind(device, kernel, problem, sets, shared) for kernel in kernels]
        self._vendor = fastest_for(device, problem) if vendor else None
        guests = [self._vendor.launches] if self._vendor else []
        candidates = [*(one.launches for one in self._bound), *guests]
        self._candidates = (*(kernel.artifact.digest for kernel in kernels), *["vendor"] * vendor)
        self._samplers = equal_samplers(device, candidates)
        if vendor and overlapping([kernel.artifact for kernel in kernels]):
            device.pause()
            self._samplers += equal_samplers(device, [_apart(device, launches) for launches in candidates])
        self._rows: Rows = [[] for _ in self._samplers]
        self._states: States = []
        order = random.Random(seed)
        into = self._rows, self._states
        self._rounds = each_round(device, self._samplers, rounds, order, into, turn_s)
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
            candidates=self._candidates,
            samples_us=tuple(map(tuple, self._rows[: len(self._candidates)])),
            apart_us=tuple(map(tuple, self._rows[len(self._candidates) :])),
            vendor_name=self._vendor.name if self._vendor else "",
            vendor_detail=self._vendor.detail if self._vendor else {},
            mhz=mean_of_known([mhz for mhz, _ in self._states]),
            watts=mean_of_known([watts for _, watts in self._states]),
            method=METHOD,
        )


def overlapping(artifacts: Sequence[Artifact]) -> bool:
    """Whether this is the one candidate of a head_to_head, and starts while the kernel before it ends."""
    return [artifact.plan.programmatic for artifact in artifacts] == [True]


def _apart(device: Device, launches: Sequence[Launch]) -> list[Launch]:
    """The launches, each after a pause, whose time counts as theirs."""

    def after_pause(launch: Launch, stream: int = 0) -> None:
        device.pause(stream)
        launch(stream)

    return [functools.partial(after_pause, launch) for launch in launches]
