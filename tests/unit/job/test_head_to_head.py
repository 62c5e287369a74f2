"""How many samples a head-to-head takes at the power limit, by what the final showed before it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from toy_family import TOY, toy_artifact
from tune_lab import VENDOR_US, Lab

import benchmarks
from kernels.registry import FAMILIES
from tilewright.schema.trial import Outcome, Trial
from tuner.job.selection import CLEAR, HEAD_TO_HEAD, SHORT, Candidate, FinalResult, after_final
from tuner.measure.interleave import PHASES
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.stats import paired_ratio

RECORDED = (Path(benchmarks.__file__).parent / "results").glob("*-150gb-*.samples.json")


def final(ours_us: float, vendor_us: float) -> FinalResult:
    """A final of two candidates, which the second won."""
    config = TOY.make(8, 1, "row", 1, 1)
    winner = Candidate(Trial(0, config, outcome=Outcome.OK), toy_artifact(config))
    rows = (130.0,), (ours_us,), (vendor_us,)
    race = RaceSamples(("a", "b", "vendor"), rows, "lab blas", {}, None, None, "lab race")
    return FinalResult(winner, (), race, 1)


@pytest.mark.parametrize(
    ("vendor_us", "stage"), [(103.5, SHORT), (96.5, SHORT), (102.5, HEAD_TO_HEAD), (97.5, HEAD_TO_HEAD)]
)
def test_a_clear_final_is_followed_by_half_of_the_passes(vendor_us: float, stage: Any) -> None:
    assert after_final(final(100.0, vendor_us)) is stage
    assert after_final(FinalResult(final(100.0, 110.0).winner, ())) is HEAD_TO_HEAD, "without a final"
    assert SHORT.rules.passes * 2 == HEAD_TO_HEAD.rules.passes
    assert SHORT.rules.seed == HEAD_TO_HEAD.rules.seed


@pytest.mark.parametrize(("vendor_us", "passes"), [(VENDOR_US, [1, 1]), (101.0, [1, 2])])
def test_a_job_asks_for_them(monkeypatch: Any, vendor_us: float, passes: list[int]) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)
    lab, asked = Lab(), list[int]()
    lab.bench.cost = lambda text: 100.0 + random.Random(text).random()
    lab.bench.under_load, lab.bench.vendor_us = lab.bench.cost, vendor_us
    run = lab.bench.race

    def race(artifacts: Any, problem: Any, rules: RaceRules, timeout_s: float) -> RaceSamples:
        asked.append(rules.passes)
        return run(artifacts, problem, rules, timeout_s)

    lab.bench.race = race  # type: ignore[method-assign]
    assert lab.tune(max_trials=8) is not None
    assert asked == passes


def recorded_ratios() -> list[list[float]]:
    """Vendor time over ours in the 24 turns of each race that an H200 ran at its power limit."""
    races = [race["samples_us"] for path in RECORDED for race in json.loads(path.read_text()).values()]
    at_limit = [race for race in races if len(race["ours"]) == 3 * PHASES]
    return [[b / a for a, b in zip(race["ours"], race["vendor"], strict=True)] for race in at_limit]


def test_half_of_the_recorded_turns_tell_who_is_clearly_faster() -> None:
    seen, right, wrong = 0, 0, 0
    for ratios in recorded_ratios():
        true = median(ratios)
        for start in range(0, len(ratios), PHASES) if not 1 / CLEAR < true < CLEAR else ():
            found = paired_ratio(ratios[start : start + PHASES], [1.0] * PHASES)
            seen += 1
            right += not found.undecided and (found.value > 1.0) == (true > 1.0)
            wrong += not found.undecided and (found.value > 1.0) != (true > 1.0)
    assert seen >= 24
    assert right / seen > 0.9
    assert wrong == 0
