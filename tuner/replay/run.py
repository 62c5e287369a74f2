"""One replayed tuning job: the live loop, search and final race on a recorded space."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from tilewright.schema.config import Config
from tilewright.schema.job import Sampler, TuneRequest
from tilewright.schema.trial import BestConfig, Outcome, Trial
from tuner.job.context import JobContext
from tuner.job.loop import Loop
from tuner.job.progress import ProgressTracker, timed
from tuner.job.selection import select_winner
from tuner.replay.device import RecordedFamily, ReplayBench, ReplayBuilder, ReplayRecorder
from tuner.replay.space import RecordedSpace
from tuner.search.search import MEASURED, Proposal, Search, open_search

_RERACES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class RunSpec:
    """The parameters of a run.

    Attributes:
        sampler: the sampler of the search.
        budget: number of measured trials (``ok`` and ``pruned``).
        seed: random seed of search and noise.
        initial_configs: configs to try first.
        min_gain_per_s: as in a job; 0 to spend the budget.
    """

    sampler: Sampler
    budget: int
    seed: int
    initial_configs: tuple[Config, ...] = ()
    min_gain_per_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run; a fraction is optimum over true time, 1 at best.

    Attributes:
        found: after each measured trial, the fraction of the config with the lowest *measured* median.
        winner: the fraction of the winner of the final race; None if no trial succeeded.
        winner_config: text of the winner's config.
        asked, measured, repeated: numbers of proposals, of those that count, of those made before.
        sampler_s: CPU seconds in ask and tell.
        device_s: recorded seconds of check and measurement.
        flips: fraction of repeated races of the same candidates with another winner.
    """

    found: tuple[float, ...]
    winner: float | None
    winner_config: str
    asked: int
    measured: int
    repeated: int
    sampler_s: float
    device_s: float
    flips: float


class _Clocked:
    """A search that adds up its CPU seconds, so that other load on this machine does not count."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._search, name)

    def ask(self) -> Proposal | None:
        start = time.process_time()
        try:
            return self._search.ask()
        finally:
            self.seconds += time.process_time() - start

    def tell(self, proposal: Proposal, outcome: Outcome, value_us: float | None) -> None:
        start = time.process_time()
        self._search.tell(proposal, outcome, value_us)
        self.seconds += time.process_time() - start


def run(space: RecordedSpace, spec: RunSpec) -> RunResult:
    """Tune ``space`` once; the same spec gives the same run."""
    context = _context(space, spec)
    family = RecordedFamily(space)
    where = (space.problem, space.device)
    search = open_search([family], *where, spec.budget, spec.seed, spec.initial_configs, spec.sampler)
    clocked = _Clocked(search)
    tracker = ProgressTracker(context.request, context.recorder, search, time.monotonic())
    Loop(context, cast(Search, clocked), tracker).run()
    best = _winner(context, tracker)
    return RunResult(
        found=tuple(_found(space, tracker.trials)),
        winner=space.fraction(space.row(best.config)) if best else None,
        winner_config=str(best.config) if best else "",
        asked=search.asked,
        measured=tracker.measured,
        repeated=len(tracker.trials) - len({trial.config for trial in tracker.trials}),
        sampler_s=clocked.seconds,
        device_s=sum(trial.check_s + trial.measure_s for trial in tracker.trials),
        flips=_flips(space, spec, tracker, best),
    )


def _winner(context: JobContext, tracker: ProgressTracker) -> BestConfig | None:
    won = select_winner(context, tracker.trials, tracker.artifacts)
    return won.best if won else None


def _context(space: RecordedSpace, spec: RunSpec, race: int = 0) -> JobContext:
    families, seed = (space.family,), spec.seed + race
    request = TuneRequest(
        space.problem,
        families=families,
        max_trials=spec.budget,
        seed=seed,
        min_gain_per_s=spec.min_gain_per_s,
    )
    bench, builder = ReplayBench(space, spec.seed), ReplayBuilder(space)
    return JobContext(request, "replay", bench, builder, ReplayRecorder(), threading.Event())


def _found(space: RecordedSpace, trials: Sequence[Trial]) -> Iterator[float]:
    """The optimum over the true time of the incumbent, after each measured trial."""
    lowest_us, fraction = math.inf, 0.0
    for trial in trials:
        if trial.outcome is Outcome.OK and timed(trial).median_us < lowest_us:
            lowest_us, fraction = timed(trial).median_us, space.fraction(space.row(trial.config))
        if trial.outcome in MEASURED:
            yield fraction


def _flips(space: RecordedSpace, spec: RunSpec, tracker: ProgressTracker, best: BestConfig | None) -> float:
    """The fraction of repeated races of the candidates that another config wins."""
    again = [_winner(_context(space, spec, 1 + race), tracker) for race in range(_RERACES)]
    return float(np.mean([(one and one.config) != (best and best.config) for one in again]))
