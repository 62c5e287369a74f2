"""Kernel Tuner's strategies on the spaces that ``tilewright replay`` runs on, at equal budgets.

Needs Kernel Tuner 1.5 or newer with scikit-learn, in a virtual environment of its own:

    python -m venv kt && kt/bin/pip install kernel_tuner scikit-learn
    kt/bin/python benchmarks/search/kernel_tuner_strategies.py SPACE.json.gz ... --runs 45

Kernel Tuner runs in its simulation mode, each strategy with its default options and ``max_fevals`` as the
budget of *unique valid* evaluations; its search space is exactly the configs in the cache, so that no
strategy wastes an evaluation on a config that does not exist. What it found after n evaluations is judged
like a replay: optimum over the median of all stored samples of the config with the lowest time as the
strategy saw it. Kernel Tuner sees the stored mean, without noise; tilewright's replays draw noisy samples.
This file imports nothing of tilewright, so that the environment needs nothing of it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import importlib.metadata
import io
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

STRATEGIES = (
    "random_sample",
    "genetic_algorithm",
    "greedy_ils",
    "greedy_mls",
    "simulated_annealing",
    "dual_annealing",
    "diff_evo",
    "pso",
    "firefly_algorithm",
    "mls",
    "ordered_greedy_mls",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "bayes_opt",
)
RESULTS = Path(__file__).parents[1] / "results"
CHECKPOINTS = (10, 25, 50, 100, 200)
NEAR = 0.95
RESAMPLES = 2000


class Comparison:
    """A strategy in Kernel Tuner's eyes that runs its real strategies many times over on one search space.

    Going through one call of ``tune_cache`` spares reading the cache and building the space for each run.
    """

    def __init__(self, strategies: Sequence[str], runs: int, budget: int, true_ms: dict[str, float]) -> None:
        self._strategies = strategies
        self._runs = runs
        self._budget = budget
        self._true_ms = true_ms
        self._optimum_ms = min(true_ms.values())
        self.rows: list[dict[str, Any]] = []

    def tune(self, searchspace: Any, runner: Any, tuning_options: Any) -> list[dict[str, Any]]:
        """All strategies, all runs; the results of the last run, as Kernel Tuner wants some."""
        from kernel_tuner.interface import strategy_map

        results: list[dict[str, Any]] = []
        for name in self._strategies:
            curves, cpu_s = [], 0.0
            for run in range(self._runs):
                # NOTE: a search space remembers which neighbours it gave out; another run must not profit.
                fresh = copy.deepcopy(searchspace)
                started = time.process_time()
                results = self._once(strategy_map[name], run, fresh, runner, tuning_options)
                cpu_s += time.process_time() - started
                curves.append(self._curve(results, searchspace))
            self.rows.append(summary(name, curves, self._budget, cpu_s / self._runs))
            print(json.dumps(self.rows[-1]), file=sys.stderr, flush=True)  # noqa: T201
        return results

    def _once(
        self, strategy: Any, seed: int, searchspace: Any, runner: Any, tuning_options: Any
    ) -> list[dict[str, Any]]:
        from kernel_tuner.interface import Options
        from kernel_tuner.util import TuningBudget

        random.seed(seed)
        np.random.seed(seed)
        runner.visited_results = set()
        # NOTE: strategies write defaults into their options; the next one would trip over them.
        tuning_options.strategy_options = Options(max_fevals=self._budget)
        tuning_options["budget"] = TuningBudget(None, self._budget)
        with contextlib.redirect_stdout(io.StringIO()):
            found: list[dict[str, Any]] = strategy.tune(searchspace, runner, tuning_options)
        return found

    def _curve(self, results: list[dict[str, Any]], searchspace: Any) -> list[float]:
        """Optimum over true time of the best so far after each unique evaluation that counts."""
        names = list(searchspace.tune_params)
        seen: dict[str, float] = {}
        curve, lowest, fraction = [], float("inf"), 0.0
        for result in results:
            key = ",".join(str(result[name]) for name in names)
            if key in seen or not isinstance(result.get("time"), float):
                continue
            seen[key] = result["time"]
            if seen[key] < lowest:
                lowest, fraction = seen[key], self._optimum_ms / self._true_ms[key]
            curve.append(fraction)
        return curve[: self._budget]


def summary(name: str, curves: Sequence[Sequence[float]], budget: int, cpu_s: float) -> dict[str, Any]:
    """Mean and 95 % bootstrap interval of the fraction, and the share of runs at 95 %, at each checkpoint.

    A run that ended before its budget keeps what it had found.
    """
    table = np.asarray([[*curve, *[curve[-1]] * (budget - len(curve))] for curve in curves])
    drawn = np.random.default_rng(0).integers(len(table), size=(RESAMPLES, len(table)))
    points = []
    for trials in [one for one in CHECKPOINTS if one <= table.shape[1]]:
        at = table[:, trials - 1]
        low, high = np.quantile(at[drawn].mean(axis=1), (0.025, 0.975))
        share = float((at >= NEAR).mean())
        points.append(
            {"trials": trials, "fraction": _r(at.mean()), "low": _r(low), "high": _r(high), "near": _r(share)}
        )
    spent = _r(statistics.mean(map(len, curves)))
    return {
        "strategy": name,
        "runs": len(table),
        "evaluations": spent,
        "checkpoints": points,
        "cpu_s_per_run": _r(cpu_s),
    }


def read_cache(path: Path) -> dict[str, Any]:
    """A Kernel Tuner cache; a T4 file of ``tilewright record`` in the form of one."""
    data = path.read_bytes()
    parsed: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    if "results" not in parsed:
        return parsed
    told = parsed["metadata"]
    names = list(told["knobs"])
    rows = []
    for result in parsed["results"]:
        times = [float(one) for one in result["times"]["runtimes"]]
        time_ms = statistics.fmean(times) if times else "RuntimeFailedConfig"
        rows.append(
            {name: result["configuration"][name] for name in names} | {"time": time_ms, "times": times}
        )
    return {
        "device_name": told["device"]["name"],
        "kernel_name": told["family"],
        "problem_size": [told["problem"]["m"], told["problem"]["n"]],
        "tune_params_keys": names,
        "tune_params": told["knobs"],
        "objective": "time",
        "cache": {",".join(str(row[name]) for name in names): row for row in rows},
    }


def compare(path: Path, strategies: Sequence[str], runs: int, budget: int) -> dict[str, Any]:
    """Every strategy on the space at ``path``."""
    from kernel_tuner import tune_cache

    cache = read_cache(path)
    true_ms = {
        key: statistics.median(row["times"])
        for key, row in cache["cache"].items()
        if isinstance(row["time"], float)
    }
    comparison = Comparison(strategies, runs, budget, true_ms)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "cache.json"
        plain.write_text(json.dumps(cache))
        with contextlib.redirect_stdout(io.StringIO()):
            tune_cache(str(plain), strategy=comparison, strategy_options={"max_fevals": budget}, quiet=True)
    return {
        "space": path.name.split(".")[0],
        "valid_configs": len(true_ms),
        "kernel_tuner": importlib.metadata.version("kernel_tuner"),
        "budget": budget,
        "strategies": comparison.rows,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Kernel Tuner's strategies on recorded spaces.")
    parser.add_argument("spaces", nargs="+", type=Path, help="Kernel Tuner caches or T4 files")
    parser.add_argument("--runs", type=int, default=45)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument(
        "--strategies", default=",".join(STRATEGIES), help="commas between; others stay in the file"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in arguments.spaces:
        result = compare(path, arguments.strategies.split(","), arguments.runs, arguments.budget)
        target = arguments.out / f"kernel-tuner-{result['space']}.json"
        if target.exists():
            names = [row["strategy"] for row in result["strategies"]]
            kept = json.loads(target.read_text())["strategies"]
            result["strategies"] += [row for row in kept if row["strategy"] not in names]
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(target)  # noqa: T201


def _r(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
