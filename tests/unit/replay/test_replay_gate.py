"""The default search is not worse than the last release's, on recorded spaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search import release
from tuner.replay.report import Checkpoint, Estimate

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "benchmarks" / "spaces", ROOT.parent / "shared" / "data" / "replay")
RELEASE = json.loads(release.PATH.read_text())


@pytest.mark.long
@pytest.mark.parametrize("name", RELEASE["spaces"])
def test_the_default_search_holds_the_released_curve(name: str) -> None:
    paths = [folder / name for folder in FOLDERS if (folder / name).exists()]
    if not paths:
        pytest.skip(f"{name} is not here: spaces that others recorded lie beside the checkout")
    points = release.measured(paths[0])
    assert release.shortfalls(RELEASE["spaces"][name], points) == []


def test_the_release_was_measured_with_the_plan_of_this_test() -> None:
    plan = release.PLAN
    assert RELEASE["plan"] == {name: getattr(plan, name) for name in ("sampler", "runs", "budget", "seed")}
    for points in RELEASE["spaces"].values():
        assert [one["trials"] for one in points] == list(release.TRIALS)
        assert all(one["low"] <= one["mean"] <= one["high"] for one in points)


@pytest.mark.parametrize(
    ("low", "mean", "fails"),
    [
        # 0.9 - sqrt(2) * 0.02 = 0.8717
        (0.88, 0.91, False),
        (0.88, 0.8718, False),
        (0.88, 0.8716, True),
        # An interval without width: half a percent.
        (0.9, 0.8951, False),
        (0.9, 0.8949, True),
    ],
)
def test_a_mean_below_the_curve_minus_its_interval_is_a_shortfall(
    low: float, mean: float, fails: bool
) -> None:
    released: list[dict[str, Any]] = [{"trials": 50, "mean": 0.9, "low": low, "high": 0.92}]
    point = Checkpoint(50, Estimate(mean, 0.0, 1.0), Estimate(0.0, 0.0, 0.0))
    assert bool(release.shortfalls(released, [point])) == fails
