"""One replayed tuning job: the live loop, search and final race on a recorded space."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from tilewright.config import Config
from tilewright.policy import Policy
from tilewright.trial import BestConfig, Outcome, Trial
from tuner.context import JobContext
from tuner.crown import crown
from tuner.job import TuneRequest
from tuner.ledger import Ledger, timed
from tuner.loop import Loop
from tuner.replay.device import ReplayBench, ReplayBuilder, ReplayRecorder
from tuner.replay.family import RecordedFamily
from tuner.replay.space import RecordedSpace
from tuner.search import MEASURED, Proposal, Search, open_search

_RERACES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class RunSpec:
    """What to run.

    Attributes:
        policy: how to search.
        budget: measured trials (``ok`` and ``pruned``).
        seed: of the search and of the noise.
        seeds: configs to try first.
    """

    policy: Policy
    budget: int
    seed: int
    seeds: tuple[Config, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """How a run went; fractions are optimum over true time, 1 at best.

    Attributes:
        found: after each measured trial, that of the config with the lowest median *as measured*.
        winner: that of the config that won the final race; None where nothing went well.
        winner_config: its text.
        asked, measured, repeated: proposals, those that count, those that were made before.
        sampler_s: CPU seconds in ask and tell; ``device_s``: recorded seconds of check and measurement.
        flips: share of fresh races of the same finalists that another config won.
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

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunResult:
        """The inverse of ``dataclasses.asdict``."""
        return cls(**(data | {"found": tuple(data["found"])}))


class _Clocked:
    """A search that adds up the CPU seconds it takes: other load on this machine does not count."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._search, name)

    def ask(self) -> Proposal | None:
        """As :meth:`tuner.search.Search.ask`."""
        start = time.process_time()
        try:
            return self._search.ask()
        finally:
            self.seconds += time.process_time() - start

    def tell(self, proposal: Proposal, outcome: Outcome, value_us: float | None) -> None:
        """As :meth:`tuner.search.Search.tell`."""
        start = time.process_time()
        self._search.tell(proposal, outcome, value_us)
        self.seconds += time.process_time() - start


def run(space: RecordedSpace, spec: RunSpec) -> RunResult:
    """Tune ``space`` once; the same spec gives the same run."""
    context = _context(space, spec)
    family = RecordedFamily(space)
    where = (space.problem, space.device)
    search = open_search([family], *where, spec.budget, spec.seed, spec.seeds, spec.policy)
    clocked = _Clocked(search)
    ledger = Ledger(context.request, context.recorder, search, time.monotonic())
    Loop(context, cast(Search, clocked), ledger).run()
    best = crown(context, ledger)
    return RunResult(
        found=tuple(_found(space, ledger.trials)),
        winner=space.fraction(space.row(best.config)) if best else None,
        winner_config=str(best.config) if best else "",
        asked=search.asked,
        measured=ledger.measured,
        repeated=len(ledger.trials) - len({trial.config for trial in ledger.trials}),
        sampler_s=clocked.seconds,
        device_s=sum(trial.check_s + trial.measure_s for trial in ledger.trials),
        flips=_flips(space, spec, ledger, best),
    )


def _context(space: RecordedSpace, spec: RunSpec, race: int = 0) -> JobContext:
    request = TuneRequest(space.problem, (space.family,), spec.budget, seed=spec.seed + race)
    bench, builder = ReplayBench(space, spec.seed), ReplayBuilder(space)
    return JobContext(request, "replay", bench, builder, ReplayRecorder(), threading.Event())


def _found(space: RecordedSpace, trials: Sequence[Trial]) -> Iterator[float]:
    """Optimum over the true time of the incumbent after each measured trial."""
    lowest_us, fraction = math.inf, 0.0
    for trial in trials:
        if trial.outcome is Outcome.OK and timed(trial).median_us < lowest_us:
            lowest_us, fraction = timed(trial).median_us, space.fraction(space.row(trial.config))
        if trial.outcome in MEASURED:
            yield fraction


def _flips(space: RecordedSpace, spec: RunSpec, ledger: Ledger, best: BestConfig | None) -> float:
    """How often the finalists, raced again, give another winner."""
    again = [crown(_context(space, spec, 1 + race), ledger) for race in range(_RERACES)]
    return float(np.mean([(one and one.config) != (best and best.config) for one in again]))
