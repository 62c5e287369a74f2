"""What it costs a search to propose several configs before it knows any result.

    nice python -m benchmarks.search.pending ../shared/data/replay/*.json.gz benchmarks/spaces/*.t4.json.gz

replays each recorded space on 1, 2, 4 and 8 devices that share one job: so many configs are pending, each
takes its recorded seconds of check and measurement on a virtual clock, and results are told as they end. A
run ends when the config that measured fastest is within 98 % of the optimum; one that does not come there
counts with its whole budget. Writes ``benchmarks/results/search-pending.json`` after each space.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import RESULTS, now, write_json
from tilewright.schema.job import Sampler
from tilewright.schema.trial import Outcome
from tuner.replay.device import RecordedFamily, ReplayBench, ReplayBuilder
from tuner.replay.formats import read_space
from tuner.replay.report import estimate
from tuner.replay.space import RecordedSpace
from tuner.search.search import Proposal, Search, open_search

PATH = RESULTS / "search-pending.json"
PENDING = (1, 2, 4, 8)
BUDGET = 200
GOAL = 0.98
SEED = 2027
_FAILED_S = 0.001  # of a config that does not compile, which no device sees


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One search.

    Attributes:
        trials, seconds: measured trials and virtual seconds until 98 % of the optimum, or of the whole run.
        reached: whether it came there.
    """

    trials: int
    seconds: float
    reached: bool


class Devices:
    """Devices that share the trials of one search, on a virtual clock."""

    def __init__(self, space: RecordedSpace, search: Search, seed: int) -> None:
        self._space, self._search = space, search
        self._bench, self._builder = ReplayBench(space, seed), ReplayBuilder(space)
        self._running: list[tuple[float, int, Proposal, Outcome, float | None]] = []
        self.clock, self.lowest_us, self.best = 0.0, math.inf, 0.0

    def ask(self) -> None:
        """Give each idle device a config."""
        search = self._search
        while search.ready and search.measured + search.in_flight < search.budget:
            proposal = search.ask()
            if proposal is None:
                return
            outcome, value_us, seconds = self._trial(proposal)
            heapq.heappush(
                self._running, (self.clock + seconds, proposal.number, proposal, outcome, value_us)
            )

    def tell(self) -> None:
        """Learn the result that comes next."""
        self.clock, _, proposal, outcome, value_us = heapq.heappop(self._running)
        self._search.tell(proposal, outcome, value_us)
        if outcome is Outcome.OK and value_us is not None and value_us < self.lowest_us:
            self.lowest_us = value_us
            self.best = self._space.fraction(self._space.row(proposal.config))

    def _trial(self, proposal: Proposal) -> tuple[Outcome, float | None, float]:
        space = self._space
        compiled = self._builder.submit(
            proposal.family, proposal.config, space.problem, space.device
        ).result()
        if compiled.artifact is None:
            return compiled.outcome, None, _FAILED_S
        incumbent_us = self.lowest_us if math.isfinite(self.lowest_us) else None
        result = self._bench.trial(compiled.artifact, space.problem, incumbent_us, 1.0)
        value_us = result.timing.median_us if result.timing else None
        return result.outcome, value_us, max(_FAILED_S, result.check_s + result.measure_s)


def run(space: RecordedSpace, family: RecordedFamily, pending: int, seed: int) -> Run:
    """Search ``space`` once with so many configs pending; the same arguments give the same run."""
    search = open_search([family], space.problem, space.device, BUDGET, seed, (), Sampler.STAGED, pending)
    devices = Devices(space, search, seed)
    devices.ask()
    while search.in_flight and devices.best < GOAL:
        devices.tell()
        devices.ask()
    reached = devices.best >= GOAL
    return Run(search.measured if reached else BUDGET, devices.clock, reached)


def row(space: RecordedSpace, pending: int, runs: Sequence[Run], alone: Sequence[Run]) -> dict[str, Any]:
    """The figures of one space; ``alone`` are the runs of the same seeds with one pending config."""
    trials, seconds = (np.asarray([getattr(one, name) for one in runs]) for name in ("trials", "seconds"))
    more = trials - np.asarray([one.trials for one in alone])
    faster = np.mean([one.seconds for one in alone]) / seconds.mean()
    return {
        "space": space.name,
        "pending": pending,
        "trials_to_98": _interval(trials.astype(float)),
        "more_than_1_pending": _interval(more.astype(float)),
        "median_trials_to_98": float(np.median(trials)),
        "reached": float(np.mean([one.reached for one in runs])),
        "seconds_to_98": _interval(seconds),
        "times_faster": round(float(faster), 3),
    }


def _interval(values: Any) -> dict[str, float]:
    return {name: round(value, 4) for name, value in dataclasses.asdict(estimate(values)).items()}


def main() -> None:
    """Replay every given space and write the result."""
    parser = argparse.ArgumentParser(description="What pending configs cost a search, in trials.")
    parser.add_argument("spaces", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=30)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in arguments.spaces:
        space = read_space(path)
        family = RecordedFamily(space)
        found = {
            pending: [run(space, family, pending, SEED + seed) for seed in range(arguments.runs)]
            for pending in PENDING
        }
        rows += [row(space, pending, runs, found[1]) for pending, runs in found.items()]
        write_json(
            PATH,
            {
                "command": shlex.join(["python", "-m", "benchmarks.search.pending", *sys.argv[1:]]),
                "date": now(),
                "method": __doc__,
                "sampler": Sampler.STAGED,
                "budget": BUDGET,
                "goal": GOAL,
                "runs": arguments.runs,
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main()
