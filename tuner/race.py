"""Finalists and the vendor library against each other: interleaved rounds on the same operands.

Every round takes one sample of each contender in a fresh random order, so that drifting clocks and
temperatures hit all alike; ratios are formed within rounds. The device is loaded for ``WARM_UP_S``
before the first round and never idles in between, so the figures are sustained ones.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import DeviceUnavailable
from tilewright.launch import Kernel
from tilewright.problem import GemmProblem
from tuner.devices.base import Device, VendorChoice
from tuner.measure import launches_per_sample, sampler
from tuner.operands import bind, rotated_sets, scratch
from tuner.stats import median

METHOD = "interleaved-v1, sustained"
WARM_UP_S = 1.0
_HEAT_ROUNDS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class RaceSamples:
    """What a race measured.

    Attributes:
        contenders: digests of the artifacts in the order given, then ``vendor``.
        samples_us: one row a contender, one column a round, in microseconds.
        vendor_name: which library; ``vendor_detail``: the algorithm it won its own heat with.
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
    sets = rotated_sets(device, problem)
    shared = scratch(device, kernels, problem)
    bound = [bind(device, kernel, problem, sets, shared) for kernel in kernels]
    vendor = _vendor_best(device, problem)
    entrants = [one.launches for one in bound] + [vendor.launches]
    # NOTE: equal samples: starting a replay costs a little, which more launches would spread thinner.
    count = max(launches_per_sample(device, launches) for launches in entrants)
    samplers = [sampler(device, launches, count) for launches in entrants]
    end = time.monotonic() + WARM_UP_S
    while time.monotonic() < end:
        for sample in samplers:
            sample(0)
    rows, states = _rounds(device, samplers, rounds, random.Random(seed))
    return RaceSamples(
        contenders=(*(kernel.artifact.digest for kernel in kernels), "vendor"),
        samples_us=tuple(tuple(row) for row in rows),
        vendor_name=vendor.name,
        vendor_detail=vendor.detail,
        mhz=_mean([mhz for mhz, _ in states]),
        watts=_mean([watts for _, watts in states]),
        method=METHOD,
    )


def _rounds(
    device: Device, samplers: Sequence[Callable[[int], float]], rounds: int, order: random.Random
) -> tuple[list[list[float]], list[tuple[float | None, float | None]]]:
    rows: list[list[float]] = [[] for _ in samplers]
    states = []
    turn = list(range(len(samplers)))
    for number in range(rounds):
        order.shuffle(turn)
        for index in turn:
            rows[index].append(samplers[index](number))
        now = device.telemetry()
        states.append((now.mhz, now.watts))
    return rows, states


def _vendor_best(device: Device, problem: GemmProblem) -> VendorChoice:
    choices = device.vendor(problem, rotated_sets(device, problem))
    if not choices:
        raise DeviceUnavailable(f"the vendor library proposes no algorithm for {problem}")
    if len(choices) == 1:
        return choices[0]
    count = launches_per_sample(device, choices[0].launches)
    samplers = [sampler(device, choice.launches, count) for choice in choices]
    rows, _ = _rounds(device, samplers, _HEAT_ROUNDS, random.Random(0))
    return choices[min(range(len(choices)), key=lambda i: median(rows[i]))]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
