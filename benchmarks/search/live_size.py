"""Replays the search on pools of the size that it meets in life, and on several families together.

    python -m benchmarks.search.live_size FILE ... [--fitted] [--runs 20] [--budget 200] --out FILE.json

Each FILE is a recording of one family, all of the same problem on the same device: those of
``benchmarks/lab/record_random.py``, which hold a random part of a live pool. With ``--fitted`` the first one
is extended to the whole pool: a Gaussian process that learned 2,000 of the recorded configs tells the times
of those that were not recorded. The result holds its error on the recorded ones that it was not shown.

Every plan is run with and without heuristic configs. Fractions are of the best config known: the fastest of
the pool as it is replayed. Only ask and tell are replayed, with as many pending as in a job; each time is the
median of samples drawn from those of the config.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common.results import now, write_json
from kernels.prior import prior
from kernels.registry import FAMILIES
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.measure.stats import median
from tuner.replay.device import RecordedFamily
from tuner.replay.formats import read_space
from tuner.replay.report import bootstrap, estimate
from tuner.replay.space import Entry, RecordedSpace, SpaceError
from tuner.search.gp import Floats, Scales, correlation, features_of, fitted
from tuner.search.pool import Indices, Pool
from tuner.search.search import Proposal, Search, open_search

TRIALS = (10, 25, 50, 100, 200)
NEAR = 0.98
SAMPLES = 9
_FITTED, _FITS = 400, 2
_SHOWN = 2000
_CHUNK = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class FitError:
    """How far predicted times are from recorded ones that the model was not shown.

    Attributes:
        shown, hidden: numbers of configs.
        median, p95: of the absolute difference of the logarithms.
        rank: Spearman's correlation.
        fastest: the median among the fastest tenth.
    """

    shown: int
    hidden: int
    median: float
    p95: float
    rank: float
    fastest: float


class Fit:
    """A Gaussian process of the logarithms of times over the rows of a pool."""

    def __init__(self, pool: Pool, rows: Indices, logs: Floats) -> None:
        self._pool, self._mean = pool, float(logs.mean())
        self._deviation = float(logs.std())
        costs = (logs - self._mean) / self._deviation
        features = features_of(pool.knobs)
        few = np.random.default_rng(0).permutation(len(rows))[:_FITTED]
        points = pool.points[rows[few]]
        squared = np.stack(
            [one.squares[np.ix_(points[:, one.knob], points[:, one.knob])] for one in features]
        )
        scales = centre = Scales.start(features)
        for _ in range(_FITS):
            few_costs = costs[few] - costs[few].mean()
            scales = fitted(squared.astype(np.float64), few_costs, scales, centre)
        tables = [np.zeros_like(square) for square in pool.squares]
        for one, weight in zip(features, scales.weights.astype(np.float32), strict=True):
            tables[one.knob] += weight * one.squares
        known = pool.points[rows].T
        self._apart = np.concatenate([table[:, own] for table, own in zip(tables, known, strict=True)])
        self._first = np.cumsum([0, *map(len, tables[:-1])])
        covariance = self._alike(rows).astype(np.float64) + scales.noise * np.eye(len(rows))
        self._weights = np.linalg.solve(covariance, costs).astype(np.float32)

    def logs(self, rows: Indices) -> Floats:
        """The expected logarithms of the times of any rows."""
        parts = [self._alike(rows[i : i + _CHUNK]) @ self._weights for i in range(0, len(rows), _CHUNK)]
        return self._mean + self._deviation * np.concatenate(parts).astype(np.float64)

    def _alike(self, rows: Indices) -> npt.NDArray[np.float32]:
        # NOTE: as a product with 0 and 1, which is many times faster than looking each distance up.
        chosen = np.zeros((len(rows), len(self._apart)), dtype=np.float32)
        np.put_along_axis(chosen, self._pool.points[rows] + self._first, 1.0, axis=1)
        return correlation(np.maximum(chosen @ self._apart, 0.0))


def extended(space: RecordedSpace) -> tuple[RecordedSpace, FitError]:
    """A recorded part of a pool as the whole pool of today, and the error of the times that are not recorded.

    Raises:
        SpaceError: it is not of a family of ours.
    """
    if space.family not in FAMILIES:
        raise SpaceError(f"{space.name} is of no family of ours; leave out --fitted")
    pool = Pool.of(FAMILIES[space.family], space.problem, space.device)
    found = [
        (pool.index_of(space.index.config(int(row))), row)
        for row in np.flatnonzero(np.isfinite(space.true_us))
    ]
    recorded = {here: int(row) for here, row in found if here is not None}
    rows = np.asarray(list(recorded), dtype=np.int64)
    logs = np.log(space.true_us[list(recorded.values())])
    order = np.random.default_rng(1).permutation(len(rows))
    shown, hidden = np.split(order, [min(_SHOWN, len(rows) // 2)])
    predicted = Fit(pool, rows[shown], logs[shown]).logs(np.arange(len(pool)))
    entries = [
        space.entries[recorded[row]] if row in recorded else Entry((us,))
        for row, us in enumerate(np.exp(predicted).tolist())
    ]
    whole = dataclasses.replace(
        space, name=f"{space.name}-fitted", knobs=pool.knobs, points=pool.points, entries=tuple(entries)
    )
    return whole, fit_error(len(shown), predicted[rows[hidden]], logs[hidden])


def fit_error(shown: int, predicted: Floats, truth: Floats) -> FitError:
    """The error of predicted logarithms of times."""
    wrong = np.abs(predicted - truth)
    ranks = np.stack([np.argsort(np.argsort(one)) for one in (predicted, truth)])
    return FitError(
        shown,
        len(truth),
        float(np.median(wrong)),
        float(np.quantile(wrong, 0.95)),
        float(np.asarray(np.corrcoef(ranks))[0, 1]),
        float(np.median(wrong[truth <= np.quantile(truth, 0.1)])),
    )


class Replayed(RecordedFamily):
    """A recorded family with its heuristic configs found once, or without them."""

    def __init__(self, space: RecordedSpace, heuristics: bool) -> None:
        super().__init__(space)
        own = super().heuristic_configs(space.problem, space.device) if heuristics else []
        self._given = list(own)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Those that were recorded; none if they are left out."""
        del problem, device
        return self._given


def found(
    search: Search,
    spaces: dict[str, RecordedSpace],
    seed: int,
    on_trial: Callable[[], None] = lambda: None,
) -> list[float]:
    """Best known time over the true time of the incumbent, after each measured trial; ``on_trial`` is called
    then."""
    best_us = min(space.optimum_us for space in spaces.values())
    rng = np.random.default_rng((seed, 1))
    fractions: list[float] = []
    lowest, fraction = math.inf, 0.0
    waiting: deque[Proposal] = deque()
    while True:
        while search.ready and search.measured + search.in_flight < search.budget:
            proposal = search.ask()
            if proposal is None:
                break
            waiting.append(proposal)
        if not waiting:
            return fractions
        one = waiting.popleft()
        space = spaces[one.family]
        entry = space.entries[space.row(one.config)]
        if not entry.samples_us:
            search.tell(one, entry.outcome, None)
            continue
        us = median(rng.choice(entry.samples_us, SAMPLES).tolist())
        search.tell(one, Outcome.OK, us)
        if us < lowest:
            lowest, fraction = us, best_us / float(space.true_us[space.row(one.config)])
        fractions.append(fraction)
        on_trial()


def replayed(spaces: Sequence[RecordedSpace], heuristics: bool, runs: int, budget: int) -> dict[str, Any]:
    """The figures of many runs on the spaces together."""
    families = [Replayed(space, heuristics) for space in spaces]
    named = {space.family: space for space in spaces}
    where = (spaces[0].problem, spaces[0].device)
    curves = []
    for seed in np.random.SeedSequence(2411).generate_state(runs).tolist():
        search = open_search(families, *where, budget, seed, odds=prior(*where, named))
        curve = found(search, named, seed)
        curves.append(curve + [curve[-1]] * (budget - len(curve)))
    table = np.asarray(curves)
    reached = [int(np.argmax(row >= NEAR)) + 1 if (row >= NEAR).any() else None for row in table]
    low, high = bootstrap(table)
    points = [trials for trials in TRIALS if trials <= budget]
    return {
        "spaces": {space.name: len(space) for space in spaces},
        "heuristic_configs": sum(len(family.heuristic_configs(*where)) for family in families),
        "runs": runs,
        "fractions": {
            n: [round(float(v[n - 1]), 4) for v in (table.mean(axis=0), low, high)] for n in points
        },
        "share95": estimate((table[:, -1] >= 0.95).astype(float)).value,
        "trials_to_98": sorted(reached, key=lambda one: one or math.inf),
    }


def main() -> None:
    """Command line.

    Raises:
        SpaceError: a file holds no space, or the files are not of one problem and device.
    """
    parser = argparse.ArgumentParser(description="Replays the search on pools of live size.")
    parser.add_argument("files", nargs="+", type=Path, help="recordings, one a family")
    parser.add_argument("--fitted", action="store_true", help="extend the first to its whole pool")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    spaces = [read_space(path) for path in given.files]
    if len({(space.problem, space.device) for space in spaces}) > 1:
        raise SpaceError("the files are of several problems or devices; use those of one recording")
    plans = [spaces[:1], spaces] if len(spaces) > 1 else [spaces]
    result: dict[str, Any] = {
        "date": now(),
        "problem": str(spaces[0].problem),
        "device": spaces[0].device.name,
    }
    if given.fitted:
        whole, error = extended(spaces[0])
        result["fit"] = dataclasses.asdict(error) | {"configs": len(whole)}
        plans += [[whole], [whole, *spaces[1:]]] if len(spaces) > 1 else [[whole]]
    result["replays"] = []
    for plan in plans:
        for heuristics in (True, False):
            result["replays"].append(replayed(plan, heuristics, given.runs, given.budget))
            write_json(given.out, result)


if __name__ == "__main__":
    main()
