"""Savings and losses of ending a search by the expected gain, on recorded spaces.

    python -m benchmarks.search.stopping SPACE ... [--runs 10] [--budget 200] [--processes 1]

writes ``benchmarks/results/search-stopping.json``: for each space and threshold of the expected gain of a
trial the mean number of measured trials and the mean loss against the whole budget. A job divides the
expected gain by the device seconds of a trial: where one takes 0.1 s, a threshold of 0.02 is
``min_gain_per_s`` 0.2. Of a space with heuristic configs the threshold does not matter, since a run ends once
its best config is settled.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common.results import RESULTS, write_json
from benchmarks.search.live_size import Replayed, found
from tuner.job.loop import SETTLED
from tuner.replay.formats import read_space
from tuner.replay.space import RecordedSpace
from tuner.search.search import open_search

PATH = RESULTS / "search-stopping.json"
THRESHOLDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
Run = tuple[list[float], list[float | None]]


def run(space: RecordedSpace, seed: int, budget: int) -> Run:
    """The fraction of the optimum and the expected gain after each measured trial."""
    gains: list[float | None] = []
    search = open_search([Replayed(space, True)], space.problem, space.device, budget, seed)
    fractions = found(search, {space.family: space}, seed, lambda: gains.append(search.expected_gain))
    return fractions, gains


def ended(runs: Sequence[Run], threshold: float, *, initial: bool) -> dict[str, float]:
    """Mean trials and mean loss if each run ends as :func:`tuner.job.loop.why_gain_ends` says: where its best
    config is settled and, unless it began with ``initial`` configs, less than ``threshold`` is expected."""
    trials, losses = [], []
    for fractions, gains in runs:
        settled = (
            n for n in range(SETTLED + 1, len(fractions) + 1) if len(set(fractions[n - SETTLED - 1 : n])) == 1
        )
        enough = (n for n in settled if initial or ((gain := gains[n - 1]) is not None and gain < threshold))
        trials.append(next(enough, len(fractions)))
        losses.append(1.0 - fractions[trials[-1] - 1] / fractions[-1])
    return {"trials": round(float(np.mean(trials)), 1), "loss": round(float(np.mean(losses)), 5)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="What ending a search by the expected gain saves and loses.")
    parser.add_argument("spaces", nargs="+", type=Path, help="recorded spaces")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(arguments)
    seeds = np.random.SeedSequence(7003).generate_state(given.runs).tolist()
    result: dict[str, Any] = {"runs": given.runs, "budget": given.budget, "spaces": {}}
    for path in given.spaces:
        space = read_space(path)
        with threadpool_limits(1), ProcessPoolExecutor(given.processes) as pool:
            runs = list(pool.map(functools.partial(run, space, budget=given.budget), seeds))
        initial = bool(space.heuristic_configs)
        result["spaces"][space.name] = {str(one): ended(runs, one, initial=initial) for one in THRESHOLDS}
        result["mean"] = {str(one): _mean(result["spaces"].values(), str(one)) for one in THRESHOLDS}
        write_json(PATH, result)


def _mean(spaces: Collection[dict[str, dict[str, float]]], threshold: str) -> dict[str, float]:
    return {
        name: round(float(np.mean([one[threshold][name] for one in spaces])), 5)
        for name in ("trials", "loss")
    }


if __name__ == "__main__":
    main()
