"""Medians, their intervals, and how often a race declares a winner where there is none."""

import functools
import json
import math
import re

import numpy as np
import numpy.typing as npt
import pytest
from toy_family import TOY, toy_artifact

from benchmarks.common.results import RESULTS
from tilewright.schema.trial import Outcome, Timing, Trial
from tuner.job.selection import FINAL, HEAD_TO_HEAD, Candidate, final_result
from tuner.measure.interleave import MOST_IN_A_RACE
from tuner.measure.stats import (
    CONFIDENCE,
    PERIODS_MISLEAD,
    left_behind,
    median,
    median_interval,
    paired_ratio,
    ratio_of_periods,
    rounds_needed,
)
from tuner.measure.timing import FEWEST_OF_QUICK, FEWEST_SAMPLES, PROBES

RACES = 2000


def test_median_pinned() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 10.0]) == 3.0


@pytest.mark.parametrize("count", [PROBES, FEWEST_OF_QUICK, FEWEST_SAMPLES])
def test_the_confidence_of_few_samples_is_told(count: int) -> None:
    """A trial has an interval and no field for its confidence."""
    told = " ".join((Timing.__doc__ or "").split())
    reached = 100 * median_interval([float(sample) for sample in range(count)]).confidence
    assert re.search(rf"\b{count} samples \([^)]*\) (give )?{reached:.4g} %", told)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [1.0, math.inf]])
def test_no_median_of_nothing_or_of_no_numbers(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="finite samples"):
        median(samples)


@pytest.mark.parametrize(
    ("count", "confidence", "low", "high", "reached"),
    [
        # 2 * 2^-8 = 0.0078: the extremes of 8 do for 0.99, and those of 7 (2 * 2^-7 = 0.0156) do not
        (8, 0.99, 1, 8, 1 - 2 / 256),
        (7, 0.99, 1, 7, 1 - 2 / 128),
        # P(B <= 3) = (1 + 16 + 120 + 560) / 2^16 = 0.0106, P(B <= 4) = 0.0384: rank 4 for 0.95
        (16, 0.95, 4, 13, 1 - 2 * 697 / 65536),
        # P(B <= 3) = 1351 / 2^20 = 0.0013, P(B <= 4) = 6196 / 2^20 = 0.0059 > 0.005: rank 4 for 0.99
        (20, 0.99, 4, 17, 1 - 2 * 1351 / 2**20),
        (1, 0.99, 1, 1, 0.0),
        (2, 0.5, 1, 2, 0.5),
    ],
)
def test_interval_pinned(count: int, confidence: float, low: int, high: int, reached: float) -> None:
    samples = [float(value) for value in np.random.default_rng(0).permutation(count) + 1]
    interval = median_interval(samples, confidence)
    assert (interval.value, interval.low, interval.high) == ((count + 1) / 2, low, high)
    assert interval.confidence == pytest.approx(reached, abs=1e-12)


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    rows = rng.lognormal(0.0, 1.0, size=(4000, 21))
    hits = sum(i.low <= 1.0 <= i.high for i in (median_interval(row.tolist(), 0.95) for row in rows))
    # P(B <= 5) = 0.0133 with n = 21, so the interval covers with 0.973; 4 sigma of 4000 draws are 0.010
    assert hits / 4000 == pytest.approx(0.9734, abs=0.0105)


def test_rounds_needed_pinned() -> None:
    # 2^(1 - n) must be at most 1 - confidence
    assert [rounds_needed(c) for c in (0.5, 0.95, 0.99, 0.999)] == [2, 6, 8, 11]


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_confidence_lies_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        rounds_needed(confidence)


def test_paired_ratio_pinned() -> None:
    # Ratios 1.1 .. 1.8: the median is between the 4th and 5th, the 0.99 interval the extremes of 8.
    candidate = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    base = [c * r for c, r in zip(candidate, (1.8, 1.1, 1.7, 1.2, 1.6, 1.3, 1.5, 1.4), strict=True)]
    ratio = paired_ratio(base, candidate)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.45, 1.1, 1.8))
    assert not ratio.undecided
    assert paired_ratio(candidate, candidate).undecided


def test_ratio_of_periods_pinned() -> None:
    # Ratios 1.02 and 1.03; twice as many pairs halve the variance.
    ratio = ratio_of_periods([10.2, 20.6], [10.0, 20.0])
    off = PERIODS_MISLEAD**0.5**0.5
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.025, 1.025 / off, 1.025 * off))
    assert not ratio.undecided
    assert ratio_of_periods([10.1], [10.0]).undecided


@pytest.mark.parametrize(
    ("base", "candidate", "reason"),
    [
        ([1.0], [1.0] * 2, "equally long"),
        ([1.0], [0.0], "positive"),
        ([], [], "at least one"),
    ],
)
def test_unusable_periods_are_refused(base: list[float], candidate: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ratio_of_periods(base, candidate)


@pytest.mark.parametrize(
    ("base", "candidate", "reason"),
    [
        ([1.0] * 8, [1.0] * 9, "equally long"),
        ([1.0] * 8, [1.0] * 7 + [0.0], "positive"),
        ([1.0] * 8, [1.0] * 7 + [math.nan], "positive"),
        ([1.0] * 7, [1.0] * 7, "needs 8 rounds"),
    ],
)
def test_unusable_rows_are_refused(base: list[float], candidate: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        paired_ratio(base, candidate)


def dropped_as_they_fall_behind(
    true: npt.NDArray[np.float64], scatter: float, rounds: int, seed: int
) -> tuple[list[int], int]:
    """The candidates that are never left behind, and the samples that all took."""
    rng, racing, taken = np.random.default_rng(seed), list(range(len(true))), 0
    rows: list[list[float]] = [[] for _ in true]
    for _ in range(rounds):
        drift = rng.normal(1.0, 0.01)
        for index in racing:
            rows[index].append(drift * true[index] * float(rng.lognormal(0.0, scatter)))
            taken += 1
        left = left_behind([rows[index] for index in racing])
        racing = [index for index, gone in zip(racing, left, strict=True) if not gone]
    return racing, taken


@pytest.mark.parametrize("scatter", [0.004, 0.008])
def test_slow_candidates_are_left_behind_and_the_fastest_is_kept(scatter: float) -> None:
    """Slices scatter by 0.8 % on an H200 (docs/measurement.md)."""
    true = 100.0 * np.linspace(1.0, 1.08, 32)
    races = [dropped_as_they_fall_behind(true, scatter, 8, seed) for seed in range(200)]
    lost = [true[stayed].min() / 100.0 - 1.0 for stayed, _ in races]
    assert float(np.mean(lost)) < 0.001
    assert max(lost) < 0.01
    assert np.mean([taken for _, taken in races]) < 0.45 * 32 * 8


def test_nobody_is_left_behind_for_noise() -> None:
    """Where samples scatter by 20 %, a lead of 10 % in 4 rounds says nothing."""
    assert (
        left_behind([[100.0, 80.0, 120.0, 100.0], [110.0, 121.0, 88.0, 121.0], [95.0, 99.0, 130.0, 85.0]])
        == [False] * 3
    )
    assert left_behind([[100.0] * 4, [110.0] * 4]) == [False, True]
    assert left_behind([[100.0]]) == [False]


def noisy_race(
    rng: np.random.Generator, candidates: int, rounds: int, last_speed: float = 1.0
) -> npt.NDArray[np.float64]:
    """Microseconds of one true 100 per candidate (row) and round (column), in the order a race runs them.

    Clocks drift by random steps of 0.3 % over the slots of a race, each
    round in a fresh order; one sample in ten is hit by a Pareto-tailed delay.
    """
    slots = candidates * rounds
    drift = np.exp(np.cumsum(rng.normal(0.0, 0.003, slots)))
    delay = np.where(rng.random(slots) < 0.1, rng.pareto(1.5, slots), 0.0)
    in_time_order = 100.0 * drift * rng.lognormal(0.0, 0.01, slots) * (1 + 0.05 * delay)
    order = np.argsort(rng.random((rounds, candidates)), axis=1)
    rows = np.empty((rounds, candidates))
    np.put_along_axis(rows, order, in_time_order.reshape(rounds, candidates), axis=1)
    rows[:, -1] *= last_speed
    return rows.T


def equal_candidates() -> list[Candidate]:
    timing = Timing((100.0,), 100.0, 100.0, 100.0, "test")
    configs = [TOY.make(16, 1 + i % 5, split=1 + i // 5) for i in range(MOST_IN_A_RACE)]
    trials = [Trial(i, config, outcome=Outcome.OK, timing=timing) for i, config in enumerate(configs)]
    return [Candidate(trial, toy_artifact(trial.config)) for trial in trials]


def declared(
    rng: np.random.Generator, candidates: list[Candidate], rounds: tuple[int, int], vendor: float
) -> str:
    """The verdict of the whole final: race the candidates, then the winner against the vendor afresh."""
    first = noisy_race(rng, len(candidates) + 1, rounds[0])
    won = final_result(candidates, first[:-1].tolist())
    assert won.winner in candidates
    head_to_head = noisy_race(rng, 2, rounds[1], vendor)
    ratio = paired_ratio(head_to_head[1].tolist(), head_to_head[0].tolist())
    return "tie" if ratio.undecided else ("kernel" if ratio.low > 1 else "vendor")


@pytest.mark.parametrize("bound", [0, 1], ids=["fewest rounds", "most rounds"])
def test_equal_kernels_are_declared_different_in_at_most_5_percent_of_races(bound: int) -> None:
    rng, candidates = np.random.default_rng(2 + bound), equal_candidates()
    fewest, most = zip(*((stage.fewest, stage.rules.rounds) for stage in (FINAL, HEAD_TO_HEAD)), strict=True)
    rounds = (fewest, most)[bound]
    verdicts = [declared(rng, candidates, rounds, vendor=1.0) for _ in range(RACES)]
    wrong = RACES - verdicts.count("tie")
    assert wrong / RACES <= 0.05
    assert wrong > 0, "no false winner in 2000 races at 0.99: the rule never finds a difference"


def test_equal_kernels_tie_in_the_candidates_race() -> None:
    rng, candidates = np.random.default_rng(4), equal_candidates()
    alone = 0
    for _ in range(RACES):
        rows = noisy_race(rng, len(candidates), FINAL.rules.rounds).tolist()
        alone += not final_result(candidates, rows).ties
    assert alone / RACES <= 0.05


def test_a_two_percent_lead_is_seen() -> None:
    rng, candidates = np.random.default_rng(5), equal_candidates()[:1]
    rounds = FINAL.rules.rounds, HEAD_TO_HEAD.rules.rounds
    verdicts = [declared(rng, candidates, rounds, vendor=1.02) for _ in range(200)]
    assert verdicts.count("kernel") >= 190
    assert verdicts.count("vendor") == 0


@functools.cache
def recorded_rows() -> list[list[float]]:
    """Microseconds of one candidate a row, in the order of its rounds, of the suite's races of 61 rounds."""
    files = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("suite-*.provenance.json"))]
    rows = [
        row for file in files for shape in file["shapes"].values() for row in shape["samples_us"].values()
    ]
    return [row for row in rows if len(row) == 61]


def recorded_verdicts(rounds: int, speed: float) -> list[str]:
    """What races of recorded kernels against themselves find, where the second is ``speed`` times as fast.

    Two samples taken one after the other make a round, and a coin says which is the first candidate's, as
    the random order within a round does.
    """
    rng, verdicts = np.random.default_rng(6), []
    for row in recorded_rows():
        for _ in range(40):
            start = rng.integers(len(row) - 2 * rounds + 1)
            taken = np.array(row[start : start + 2 * rounds]).reshape(rounds, 2)
            first, second = rng.permuted(taken, axis=1).T
            ratio = paired_ratio(first.tolist(), (second / speed).tolist())
            verdicts.append("tie" if ratio.undecided else ("second" if ratio.low > 1 else "first"))
    return verdicts


@pytest.mark.parametrize("rounds", [8, 15, 30])
def test_recorded_kernels_seldom_win_against_themselves(rounds: int) -> None:
    verdicts = recorded_verdicts(rounds, speed=1.0)
    assert len(verdicts) > 4000
    false_winners = len(verdicts) - verdicts.count("tie")
    assert 0 < false_winners / len(verdicts) <= 1.5 * (1 - CONFIDENCE)


def test_recorded_kernels_that_are_two_percent_faster_win() -> None:
    verdicts = recorded_verdicts(30, speed=1.02)
    assert verdicts.count("second") / len(verdicts) >= 0.99


def test_an_interval_of_thousands_of_samples() -> None:
    # sigma of Binomial(2000, 1/2) is 22.36: rank 1000.5 - 2.576 * 22.36 = 942.9 for 0.99
    interval = median_interval([float(value) for value in range(1, 2001)])
    assert (interval.low, interval.value, interval.high) == (942.0, 1000.5, 1059.0)
    assert 0.99 <= interval.confidence < 0.992
