"""Figures of two races: what one kernel gave on two GPUs of a class decides nothing."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from benchmarks.common.results import RESULTS
from tuner.measure.between_races import BETWEEN_RACES, Figure

PUBLISHED = RESULTS / "suite-v3-sm_90-132sm-85gb-700w-bfloat16.json"
SAME = ("m", "n", "k", "layout", "accumulate", "kernel")


def pairs() -> list[tuple[dict[str, Any], ...]]:
    """The rows of a suite on two GPUs in which a shape has the same kernel."""
    found = defaultdict(list)
    for row in json.loads(PUBLISHED.read_text()):
        found[tuple(row[name] for name in SAME)].append(row)
    return [pair for rows in found.values() for pair in itertools.combinations(rows, 2)]


def speedup(row: dict[str, Any]) -> Figure:
    """The lower one, of which the interval is."""
    return Figure(min(row["ratio_back_to_back"], row["ratio_apart"]), row["ci_low"], row["ci_high"])


def test_published_speed_ups_of_one_kernel_decide_nothing() -> None:
    disjoint, decided = 0, 0
    for one, other in pairs():
        a, b = speedup(one), speedup(other)
        disjoint += a.high < b.low or b.high < a.low
        ratio = a.over(b)
        decided += not ratio.low <= 1.0 <= ratio.high
    assert (len(pairs()), disjoint, decided) == (19, 10, 0)


def test_published_times_of_one_kernel_lie_within_the_spread() -> None:
    ratios = [one["ours_us"] / other["ours_us"] for one, other in pairs()]
    assert all(1 / BETWEEN_RACES < ratio < BETWEEN_RACES for ratio in ratios)
    assert max(*ratios, *(1 / ratio for ratio in ratios)) > 1.03


@pytest.mark.parametrize(
    ("a", "b", "interval"),
    [
        # narrow intervals: the spread around 10 / 8 = 1.25
        (Figure(10.0, 10.0, 10.0), Figure(8.0, 8.0, 8.0), (1.25 / BETWEEN_RACES, 1.25 * BETWEEN_RACES)),
        # wide ones: 9 / 10 and 12 / 6
        (Figure(10.0, 9.0, 12.0), Figure(8.0, 6.0, 10.0), (0.9, 2.0)),
    ],
)
def test_the_interval_between_races_by_hand(a: Figure, b: Figure, interval: tuple[float, float]) -> None:
    ratio = a.over(b)
    assert ratio.value == 1.25
    assert (ratio.low, ratio.high) == pytest.approx(interval)
