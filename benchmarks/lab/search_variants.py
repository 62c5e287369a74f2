"""Replays the default sampler with other constants, run for run against the sampler as it is.

    python -m benchmarks.lab.search_variants ../shared/data/replay/*.json.gz --runs 150 --processes 32 \\
        --stop-after 400 --variant gp.WIDENED=1.5 --variant gp.WIDENED=3 --variant staged.FIRST=5 \\
        --variant staged.FIRST=14,gp.LENGTH_DEVIATION=1 --out variants.json

A variant names constants of ``tuner.search.gp`` and ``tuner.search.staged`` with their values. Its runs have
the seeds of the runs without it, so that the interval of a mean difference leaves out what the seeds do to
both. Choose on some spaces with one seed, and judge the choice on the others with another seed: of ten
variants that change nothing, one will look better.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.common.results import now, write_json
from benchmarks.search import sweep
from tilewright.schema.job import Sampler
from tuner.replay.formats import read_space
from tuner.replay.report import CHECKPOINTS, estimate
from tuner.replay.run import RunResult, RunSpec
from tuner.search import gp, staged

MODULES: dict[str, ModuleType] = {"gp": gp, "staged": staged}
UNCHANGED = "as it is"


def constants_of(variant: str) -> dict[tuple[str, str], float]:
    """The constants that a variant names, by module and name.

    Raises:
        ValueError: there is no such constant, or the value is no number.
    """
    found = {}
    for change in variant.split(",") if variant != UNCHANGED else ():
        place, _, value = change.partition("=")
        module, _, name = place.partition(".")
        now_is = getattr(MODULES.get(module), name, None)
        if not isinstance(now_is, int | float):
            raise ValueError(f"{place} is no number of {' or '.join(MODULES)}; use one as gp.WIDENED=3")
        found[module, name] = type(now_is)(value)
    return found


@contextlib.contextmanager
def changed(constants: Mapping[tuple[str, str], float]) -> Iterator[None]:
    """Set constants, and restore them at the end."""
    before = {(module, name): getattr(MODULES[module], name) for module, name in constants}
    try:
        for (module, name), value in constants.items():
            setattr(MODULES[module], name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(MODULES[module], name, value)


def one_run(space: str, variant: str, spec: RunSpec) -> RunResult:
    """One run of a variant in this process."""
    with changed(constants_of(variant)):
        return sweep.one_run(space, Sampler.STAGED, spec)


def figures(runs: Sequence[RunResult], unchanged: Sequence[RunResult], budget: int) -> dict[str, Any]:
    """Mean fraction of the optimum at each number of trials, and the mean difference with its interval."""
    at: dict[str, Any] = {}
    for trials in (one for one in CHECKPOINTS if one <= budget):
        own, other = (np.asarray([_at(run, trials) for run in each]) for each in (runs, unchanged))
        more = estimate(own - other)
        rounded = [round(value, 5) for value in (more.value, more.low, more.high)]
        at[str(trials)] = {"mean": round(float(own.mean()), 5), "more": rounded}
    return at


def _at(run: RunResult, trials: int) -> float:
    return run.found[min(trials, len(run.found)) - 1]


def table(done: Mapping[sweep.Key, Sequence[RunResult]], budget: int) -> dict[str, dict[str, Any]]:
    """The figures of each variant on each space where the runs without it are finished too."""
    found: dict[str, dict[str, Any]] = {}
    for (space, variant), runs in done.items():
        if unchanged := done.get((space, UNCHANGED)):
            found.setdefault(space, {})[variant] = figures(runs, unchanged, budget)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Replays the default sampler with other constants.")
    parser.add_argument("spaces", nargs="+", type=Path, help="recorded spaces")
    parser.add_argument("--variant", action="append", required=True, metavar="MODULE.NAME=VALUE,...")
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--seed", type=int, default=25112026)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop-after", type=float, metavar="SECONDS")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    given = parser.parse_args(arguments)
    for variant in given.variant:
        constants_of(variant)
    sweep.SPACES.update((space.name, space) for space in map(read_space, given.spaces))
    plan = sweep.planned(Sampler.STAGED, given.runs, given.budget, given.seed)
    plans = {(space, one): plan for space in sweep.SPACES for one in (UNCHANGED, *given.variant)}
    command = shlex.join(["python", "-m", "benchmarks.lab.search_variants", *(arguments or sys.argv[1:])])
    done: dict[sweep.Key, list[RunResult]] = {}
    # NOTE: forked, so that each process has the spaces that were read above.
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("fork")) as pool:
        for key, runs in sweep.finished(pool, plans, given.stop_after, one_run):
            done[key] = runs
            result = {"command": command, "date": now(), "seed": given.seed, "runs": given.runs}
            write_json(given.out, result | {"spaces": table(done, given.budget)})


if __name__ == "__main__":
    main()
