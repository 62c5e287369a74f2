"""One race of the suite: the tuned kernel and the vendor libraries on the same buffers, interleaved.

Inputs are N(0, 1) and rotate over sets that together exceed twice the last-level cache. Every candidate's
D is held against float64 first. The device is loaded until its clock is steady; then every round takes one
sample of each in a fresh random order, ours twice, so that the race shows how far apart equals come out. At
the device's power limit a sample lasts until the clock is the candidate's own
(:mod:`tuner.measure.interleave`).
Large problems are also sampled in a burst, each time after a pause: clocks are higher there than any load
can hold.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common.results import Stopwatch
from benchmarks.suite.opponents import AGAIN, BEST, OURS, Candidate, most_error, opponents, relative_error
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError
from tilewright.launch import Kernel, load
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.correctness import reference_values
from tuner.measure.interleave import equal_samplers, mean_of_known, shuffled_rounds
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median
from tuner.measure.timing import reach_steady_clock

METHOD = (
    "suite-v2: interleaved rounds, settled clocks, turns of 0.1 s where power is the limit,"
    " rotated N(0, 1) operands"
)
ROUNDS = 61
BURST_FLOPS = 2 * 4096**3
BURST_IDLE_S = 0.3
_BURSTS = 3
_STATES = {True: "settled", False: "drifting", None: "clock unknown"}

Sampler = Callable[[int], float]


@dataclasses.dataclass(frozen=True, slots=True)
class RaceResult:
    """What a race measured; all by name of the candidate.

    Attributes:
        samples_us: microseconds, one a round.
        detail: what each tells of itself; errors: relative Frobenius error of its D.
        absent: who took no part, and why.
        state: ``settled``, ``drifting`` or ``clock unknown`` when the rounds began.
        mhz, watts: mean over the rounds; None if unknown.
        burst_us: after a pause; empty for small problems.
        sets: operand sets in rotation.
        seconds: where the time of the race went.
    """

    samples_us: dict[str, tuple[float, ...]]
    detail: dict[str, dict[str, Any]]
    errors: dict[str, float]
    absent: dict[str, str]
    state: str
    mhz: float | None
    watts: float | None
    burst_us: dict[str, float]
    sets: int
    seconds: dict[str, float]


def race_shape(
    device: Device, problem: GemmProblem, artifact: Artifact, rounds: int, seed: int
) -> RaceResult:
    """Race an artifact with everyone there is for its problem.

    Raises:
        ArtifactError: the artifact's D is not the product.
        LaunchError: a kernel does not run.
    """
    kernel = load(artifact)
    try:
        return _race(device, problem, kernel, rounds, seed)
    finally:
        kernel.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """Who races on which operands, how exact each is, and who does not race, with the reason."""

    candidates: list[Candidate]
    sets: Sequence[Tensors]
    errors: dict[str, float]
    absent: dict[str, str]


def _race(device: Device, problem: GemmProblem, kernel: Kernel, rounds: int, seed: int) -> RaceResult:
    watch = Stopwatch()
    field = _field(device, problem, kernel, watch)
    names = [*(one.name for one in field.candidates), AGAIN]
    with watch.part("settle"):
        launches = [one.launches for one in field.candidates]
        samplers = equal_samplers(device, [*launches, launches[0]])
        state = _STATES[reach_steady_clock(device, samplers)]
    with watch.part("rounds"):
        rows, states = shuffled_rounds(device, samplers, rounds, random.Random(seed))
    with watch.part("burst"):
        burst_us = _burst(dict(zip(names, samplers, strict=True)), problem)
    return RaceResult(
        samples_us={name: tuple(row) for name, row in zip(names, rows, strict=True)},
        detail={one.name: one.detail for one in field.candidates},
        errors=field.errors,
        absent=field.absent,
        state=state,
        mhz=mean_of_known([mhz for mhz, _ in states]),
        watts=mean_of_known([watts for _, watts in states]),
        burst_us=burst_us,
        sets=len(field.sets),
        seconds=watch.seconds,
    )


def _field(device: Device, problem: GemmProblem, kernel: Kernel, watch: Stopwatch) -> _Field:
    """Our kernel first, then everyone there is whose result is right."""
    with watch.part("operands"):
        sets = rotated_sets(device, problem)
        bound = bind(device, kernel, problem, sets)
    with watch.part("opponents"):
        others, absent = opponents(device, problem, sets)
    ours = Candidate(OURS, bound.launches, {"library": "tilewright"}, bound)
    with watch.part("check"):
        errors = _errors(device, problem, sets[0], [ours, *others])
    right = [one for one in (ours, *others) if _right(problem, errors[one.name])]
    for one in others:
        if one not in right:
            absent[one.name] = f"its result is off by {errors[one.name]:.3g}"
    return _Field(right, sets, {one.name: errors[one.name] for one in right}, absent)


def _errors(
    device: Device, problem: GemmProblem, tensors: Tensors, field: Sequence[Candidate]
) -> dict[str, float]:
    expected = reference_values(device, problem, tensors)
    errors = {one.name: relative_error(device, one.launches[0], problem, tensors, expected) for one in field}
    if not _right(problem, errors[OURS]):
        raise ArtifactError(
            f"the stored winner's result for {problem} is off by {errors[OURS]:.3g}, more than"
            f" {most_error(problem):.3g}; tune it again with --retune"
        )
    return errors


def _right(problem: GemmProblem, error: float) -> bool:
    return error <= most_error(problem)  # NOTE: false for NaN


def _burst(samplers: dict[str, Sampler], problem: GemmProblem) -> dict[str, float]:
    if problem.flops < BURST_FLOPS:
        return {}
    pair = [name for name in (OURS, BEST) if name in samplers]
    return {name: median([_after_pause(samplers[name]) for _ in range(_BURSTS)]) for name in pair}


def _after_pause(sample: Sampler) -> float:
    time.sleep(BURST_IDLE_S)
    return sample(0)
