"""The curve that the default search must not fall below: replays of few runs on recorded spaces.

    python -m benchmarks.search.release ../shared/data/replay/*.json.gz benchmarks/spaces/*.t4.json.gz

writes ``benchmarks/results/search-release.json``; run it for each release.
``tests/unit/replay/test_replay_gate.py`` replays the same plan on the same spaces, and fails where a mean
lies below this curve minus its interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.schema.job import Sampler
from tuner.replay.report import Checkpoint, summarize
from tuner.replay.runner import ReplayPlan, replay_file

PATH = Path(__file__).parents[1] / "results" / "search-release.json"
PLAN = ReplayPlan(Sampler.STAGED, runs=24, budget=100, seed=2026)
TRIALS = (25, 50, 100)
LEAST_MARGIN = 0.005


def measured(path: Path) -> list[Checkpoint]:
    """Where the default search stands on the space of a file after each of :data:`TRIALS`."""
    results = replay_file(path, PLAN, min(PLAN.runs, len(os.sched_getaffinity(0))))
    points = summarize(results, PLAN.budget).checkpoints
    return [point for point in points if point.trials in TRIALS]


def figures(points: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """What the release keeps of a space."""
    return [
        {
            "trials": point.trials,
            "mean": round(point.fraction.value, 5),
            "low": round(point.fraction.low, 5),
            "high": round(point.fraction.high, 5),
        }
        for point in points
    ]


def shortfalls(released: Sequence[Mapping[str, Any]], points: Sequence[Checkpoint]) -> list[str]:
    """In words, where ``points`` lie below the curve of the release by more than its interval.

    The difference of two means of as many runs spreads sqrt(2) times as wide as one of them. Half a percent,
    the noise of the samples, is granted in any case: where all runs agree an interval has no width.
    """
    now = {point.trials: point.fraction.value for point in points}
    found = []
    for one in released:
        margin = max(LEAST_MARGIN, math.sqrt(2.0) * (one["mean"] - one["low"]))
        if now[one["trials"]] < one["mean"] - margin:
            found.append(
                f"{now[one['trials']]:.4f} of the optimum after {one['trials']} trials, released at"
                f" {one['mean']:.4f} with a margin of {margin:.4f}"
            )
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="Writes the curve that the default search must not fall below."
    )
    parser.add_argument("spaces", nargs="+", type=Path, help="recorded spaces")
    spaces = {path.name: figures(measured(path)) for path in parser.parse_args().spaces}
    plan = {"sampler": PLAN.sampler, "runs": PLAN.runs, "budget": PLAN.budget, "seed": PLAN.seed}
    PATH.write_text(json.dumps({"plan": plan, "spaces": spaces}, indent=1) + "\n")


if __name__ == "__main__":
    main()
