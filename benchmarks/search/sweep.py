"""Replays every sampler on every recorded space, and renews the tables of ``benchmarks/results/search.md``.

    python -m benchmarks.search.sweep ../shared/data/replay/*.json.gz benchmarks/spaces/*-h200.t4.json.gz \
        --runs 150 --seed 4112026 --processes 64 --stop-after 540

The samplers are tilewright's, and Optuna's as they come: ``optuna-tpe`` and ``optuna-nsgaii`` over one
category a knob, ``optuna-cmaes`` over positions of values. These may ask for configs that do not exist, told
as failures, and for one again, told its time again; neither counts as a trial, and a run ends after five
times as many asks as trials. All measure by the same rules.

Each finished sampler of a space is written at once as ``replay-SPACE-SAMPLER.json``, with the summary and the
page. A file whose plan is the same is not made again, so an interrupted sweep goes on: give another seed to
measure anew.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState
from threadpoolctl import threadpool_limits

from benchmarks.common.results import RESULTS, write_json
from benchmarks.search import report
from tilewright.schema.job import Sampler
from tilewright.schema.trial import Outcome
from tuner.replay.device import ReplayBench, ReplayBuilder
from tuner.replay.formats import read_space
from tuner.replay.report import Report, summarize
from tuner.replay.run import RunResult, RunSpec, run
from tuner.replay.runner import ReplayPlan
from tuner.replay.space import RecordedSpace
from tuner.search.pool import Pool
from tuner.search.samplers import categories, positions, row_of

ASKS_PER_TRIAL = 5
_TIMEOUT_S = 60.0

Spaces = dict[str, BaseDistribution]
OPTUNA: dict[str, tuple[Callable[[int], BaseSampler], Callable[[Pool], Spaces]]] = {
    "optuna-tpe": (lambda seed: TPESampler(seed=seed), categories),
    "optuna-cmaes": (lambda seed: CmaEsSampler(seed=seed), positions),
    "optuna-nsgaii": (lambda seed: NSGAIISampler(seed=seed), categories),
}
SAMPLERS = (*(str(one) for one in Sampler), *OPTUNA)
SPACES: dict[str, RecordedSpace] = {}


def optuna_run(space: RecordedSpace, sampler: str, seed: int, budget: int) -> RunResult:
    """One run of a sampler of Optuna, which does not know the valid configs."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    make, distributions = OPTUNA[sampler]
    study = optuna.create_study(sampler=make(seed))
    searched, builder, bench = distributions(space.index), ReplayBuilder(space), ReplayBench(space, seed)
    known: dict[int, float | None] = {}
    points: set[tuple[int, ...]] = set()
    found: list[float] = []
    lowest, fraction, best, asked, start = math.inf, 0.0, None, 0, time.process_time()
    while len(found) < budget and asked < ASKS_PER_TRIAL * budget:
        asked += 1
        trial = study.ask(searched)
        points.add(tuple(trial.params.values()))
        try:
            row = row_of(space.index, trial.params)
        except KeyError:
            study.tell(trial, state=TrialState.FAIL)
            continue
        if row not in known:
            config = space.index.config(row)
            artifact = builder.submit(space.family, config, space.problem, space.device).result().artifact
            incumbent = lowest if lowest < math.inf else None
            result = artifact and bench.trial(artifact, space.problem, incumbent, _TIMEOUT_S)
            us = result.timing.median_us if result and result.timing else None
            if result and us and result.outcome is Outcome.OK and us < lowest:
                lowest, fraction, best = us, space.fraction(row), config
            if us is not None:
                found.append(fraction)
            known[row] = us
        if known[row] is None:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, known[row])
    return RunResult(
        found=tuple(found),
        winner=fraction or None,
        winner_config=str(best or ""),
        asked=asked,
        measured=len(found),
        repeated=asked - len(points),
        sampler_s=time.process_time() - start,
        device_s=0.0,
        flips=0.0,
    )


def one_run(space: str, sampler: str, spec: RunSpec) -> RunResult:
    """One run in this process, of a space that was read before it was forked."""
    with threadpool_limits(1):
        if sampler in OPTUNA:
            return optuna_run(SPACES[space], sampler, spec.seed, spec.budget)
        return run(SPACES[space], spec)


def planned(sampler: str, runs: int, budget: int, seed: int) -> ReplayPlan:
    """The plan of a sampler; one of Optuna's has the seeds of any other."""
    own = Sampler(sampler) if sampler not in OPTUNA else Sampler.RANDOM
    return ReplayPlan(own, runs, budget, seed)


def write(
    path: Path, space: RecordedSpace, sampler: str, plan: ReplayPlan, runs: Sequence[RunResult]
) -> None:
    """Write the file of a finished sampler, and renew the summary and the page beside it."""
    data = Report.of(space, plan, summarize(runs, plan.budget), runs).to_dict()
    data["plan"]["sampler"] = sampler
    write_json(path, data)
    report.renew(path.parent)


def is_done(path: Path, plan: ReplayPlan) -> bool:
    """Whether a file holds the result of this plan."""
    if not path.exists():
        return False
    stored = json.loads(path.read_text())["plan"]
    return all(stored[name] == getattr(plan, name) for name in ("runs", "budget", "seed"))


Key = tuple[str, str]


def finished(
    pool: ProcessPoolExecutor, plans: dict[Key, ReplayPlan], stop_after: float | None
) -> Iterator[tuple[Key, list[RunResult]]]:
    """The runs of each plan of a space and a sampler, as the plans are finished within ``stop_after`` s."""
    waiting: dict[Future[RunResult], tuple[Key, int]] = {}
    for key, plan in plans.items():
        for number, spec in enumerate(plan.specs()):
            waiting[pool.submit(one_run, *key, spec)] = key, number
    done: collections.defaultdict[Key, dict[int, RunResult]] = collections.defaultdict(dict)
    try:
        for future in as_completed(waiting, stop_after):
            key, number = waiting[future]
            done[key][number] = future.result()
            if len(done[key]) == plans[key].runs:
                yield key, [done[key][number] for number in range(plans[key].runs)]
    except TimeoutError:
        pool.shutdown(wait=True, cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Replays every sampler on every recorded space.")
    parser.add_argument("spaces", nargs="+", type=Path, help="recorded spaces")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--seed", type=int, default=4112026)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop-after", type=float, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    SPACES.update((space.name, space) for space in map(read_space, given.spaces))
    paths = {(n, s): given.out / f"replay-{n}-{s}.json" for s in given.samplers for n in SPACES}
    plans = {key: planned(key[1], given.runs, given.budget, given.seed) for key in paths}
    left = {key: plan for key, plan in plans.items() if not is_done(paths[key], plan)}
    # NOTE: forked, so that each process has the spaces that were read above.
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("fork")) as pool:
        for key, runs in finished(pool, left, given.stop_after):
            write(paths[key], SPACES[key[0]], key[1], plans[key], runs)
            sys.stderr.write(f"{paths[key]}\n")


if __name__ == "__main__":
    main()
