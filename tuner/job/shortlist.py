"""Which trials of a job take part in its final."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernels.limits import loaded_bytes
from kernels.registry import FAMILIES
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Trial
from tuner.job.progress import timed
from tuner.measure.interleave import MOST_AT_POWER_LIMIT, MOST_IN_A_RACE
from tuner.measure.timing import power_may_limit

WITHIN = 1.10
SPARING_WITHIN, SPARING_LOADS = 1.03, 0.9


def shortlist(trials: Sequence[Trial], loads: Callable[[Trial], float] | None = None) -> list[Trial]:
    """The fastest complete trials: 3 at most, within 10 % of the best median, each kernel once.

    Where power may limit the device there are 2: the fastest one, and of those within 3 % the one that loads
    the fewest bytes, as bursts do not show what a kernel's power costs it
    (benchmarks/lab/2026-11-30-sparing-candidates.md). Times of different methods do not compare. So a job
    that another release began has as many of each method, the latest first.

    Args:
        loads: see :func:`loads_at_the_limit`.
    """
    complete = [trial for trial in trials if trial.outcome is Outcome.OK]
    methods = dict.fromkeys(timed(trial).method for trial in reversed(complete))
    chosen = list[Trial]()
    for method in methods:
        ranked = _fastest([trial for trial in complete if timed(trial).method == method])
        chosen += _sparing(ranked, loads) if loads else ranked[:MOST_IN_A_RACE]
    return chosen


def loads_at_the_limit(problem: GemmProblem, device: DeviceSpec) -> Callable[[Trial], float] | None:
    """A function for the bytes of A and B that a trial's kernel loads, infinite for a config of an earlier
    release; None unless power may limit the device."""

    def loads(trial: Trial) -> float:
        family = FAMILIES.get(trial.config.family)
        if family is None:
            return math.inf
        config = family.completed(trial.config)
        if family.why_invalid(config, problem, device):
            return math.inf
        return loaded_bytes(problem, family.plan(config, problem, device).grid)

    return loads if power_may_limit(problem, device) else None


def _sparing(ranked: Sequence[Trial], loads: Callable[[Trial], float]) -> Sequence[Trial]:
    """The fastest trial, and the one near it that loads the fewest bytes; the second fastest instead if that
    does not load a tenth less than the fastest."""
    fastest, *others = ranked
    near = [one for one in others if timed(one).median_us <= timed(fastest).median_us * SPARING_WITHIN]
    sparing = min(near, key=loads, default=fastest)
    spares = loads(sparing) <= SPARING_LOADS * loads(fastest)
    return [fastest, sparing] if spares else ranked[:MOST_AT_POWER_LIMIT]


def _fastest(trials: Sequence[Trial]) -> list[Trial]:
    ranked = sorted(trials, key=lambda trial: (timed(trial).median_us, trial.number))
    by_kernel: dict[str | None, Trial] = {}
    for trial in ranked:
        if timed(trial).median_us <= timed(ranked[0]).median_us * WITHIN:
            by_kernel.setdefault(trial.artifact, trial)
    return list(by_kernel.values())
