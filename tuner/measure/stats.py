"""Medians with distribution-free confidence intervals, and the comparison of two candidates of a race.

Their intervals consist of order statistics. For any distribution, the number of samples below its
median is Binomial(n, 1/2), so the k-th smallest and the k-th largest of n independent samples
enclose the median with probability 1 - 2 P(Binomial(n, 1/2) <= k - 1). At the power limit samples are few
means of whole periods, and how well these repeat is known from longer measurements.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

import numpy as np

CONFIDENCE = 0.99
BEHIND = 2.0  # standard errors of the difference between two candidates
SCATTER, SCATTER_WEIGHT = 0.01, 8  # of a sample, assumed with the weight of so many degrees of freedom
# 99 of 100 ratios of two means of a period of the swing at the power limit are that near to the true one, on
# H100s (benchmarks/lab/2026-11-27-power-swing.json) and H200s (benchmarks/lab/2026-11-29-whole-seconds.md).
PERIODS_MISLEAD = 1.016


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A median with its interval, or the mean of whole periods with its own, in the unit of the samples.

    Attributes:
        value: the median, or the mean.
        low, high: they enclose it; order statistics for a median.
        confidence: probability that they do; lower than requested if the samples are too few.
    """

    value: float
    low: float
    high: float
    confidence: float


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """The speed of a candidate relative to a base: base time over candidate time.

    Attributes:
        value: the median over the rounds of a race, or the mean of few long ones; above 1 if the candidate is
            faster.
        low, high: interval of that value at :data:`CONFIDENCE`.
    """

    value: float
    low: float
    high: float

    @property
    def undecided(self) -> bool:
        """Whether the interval includes 1, so that the race shows no difference."""
        return self.low <= 1.0 <= self.high


def median(samples: Sequence[float]) -> float:
    """The median, in the unit of the samples.

    Raises:
        ValueError: there is no sample, or one is not a finite number.
    """
    if not samples or not all(map(math.isfinite, samples)):
        raise ValueError(f"a median needs one or more finite samples, got {list(samples)[:8]}")
    return float(statistics.median(samples))


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median with the narrowest order-statistic interval that reaches ``confidence``.

    With fewer samples than :func:`rounds_needed` the interval is from the smallest to the largest, at the
    lower confidence of these.

    Raises:
        ValueError: there is no sample, one is not finite, or ``confidence`` is not between 0 and 1.
    """
    value, count = median(samples), len(samples)
    rank = max(1, _rank(count, confidence))
    ordered = sorted(samples)
    return Interval(value, float(ordered[rank - 1]), float(ordered[-rank]), _coverage(count, rank))


def paired_ratio(base: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """The speed of ``candidate`` relative to ``base``, from times taken in the same rounds.

    The ratio within a round cancels effects on both (clocks, other processes). The interval is that of the
    sign test. It holds if the sign of a round is independent of the others, which the random order of each
    round ensures.

    Raises:
        ValueError: the rows differ in length, hold a time that is not positive, or have too few
            rounds to reach :data:`CONFIDENCE`.
    """
    pairs = _paired(base, candidate)
    needed = rounds_needed(CONFIDENCE)
    if len(base) < needed:
        raise ValueError(f"confidence {CONFIDENCE} needs {needed} rounds or more, got {len(base)}")
    interval = median_interval([b / c for b, c in pairs])
    return Ratio(interval.value, interval.low, interval.high)


def speed_ratio(base: Sequence[float], candidate: Sequence[float], periods: bool) -> Ratio:
    """The speed of ``candidate`` relative to ``base``, from samples of the same rounds, or of the same passes
    if these are means of whole ``periods``.

    Raises:
        ValueError: as :func:`paired_ratio` or :func:`ratio_of_periods`.
    """
    return ratio_of_periods(base, candidate) if periods else paired_ratio(base, candidate)


def sample_interval(samples: Sequence[float], periods: bool) -> Interval:
    """The median of samples with its interval, or their mean if they are means of whole ``periods``.

    Raises:
        ValueError: as :func:`median_interval` or :func:`mean_of_periods`.
    """
    return mean_of_periods(samples) if periods else median_interval(samples)


def ratio_of_periods(base: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """The speed of ``candidate`` relative to ``base``, from means of whole periods at the power limit.

    Such means are few and repeat well; how well is known from longer measurements (``PERIODS_MISLEAD``).

    Raises:
        ValueError: there is no pair, the rows differ in length, or hold a time that is not positive.
    """
    interval = mean_of_periods([b / c for b, c in _paired(base, candidate)])
    return Ratio(interval.value, interval.low, interval.high)


def mean_of_periods(samples: Sequence[float]) -> Interval:
    """The mean of what whole periods gave, with its interval.

    Raises:
        ValueError: there is no sample.
    """
    value, off = statistics.fmean(samples), PERIODS_MISLEAD ** (1.0 / math.sqrt(max(1, len(samples))))
    return Interval(value, value / off, value * off, CONFIDENCE)


def left_behind(rows: Sequence[Sequence[float]]) -> list[bool]:
    """For each candidate, whether it is slower than the fastest by more than the times scatter.

    All candidates share one scatter: that of the logarithms of the times, less the means of candidates and of
    rounds. The rule decides which candidates are timed further, not what is reported, and gives no
    confidence.

    Args:
        rows: one row of times for each candidate, all from the same rounds.
    """
    logs = np.log(np.asarray(rows, dtype=float))
    candidates, rounds = logs.shape
    means = logs.mean(axis=1)
    rest = logs - means[:, None] - logs.mean(axis=0) + logs.mean()
    freedom = (candidates - 1) * (rounds - 1) + SCATTER_WEIGHT
    variance = (float((rest**2).sum()) + SCATTER_WEIGHT * SCATTER**2) / freedom
    limit = BEHIND * math.sqrt(2.0 * variance / rounds)
    return [bool(mean - means.min() > limit) for mean in means]


def _paired(base: Sequence[float], candidate: Sequence[float]) -> list[tuple[float, float]]:
    if len(base) != len(candidate):
        raise ValueError(f"paired rows must be equally long, got {len(base)} and {len(candidate)} rounds")
    if not all(time > 0 for time in (*base, *candidate)):
        raise ValueError("times must be positive")
    return list(zip(base, candidate, strict=True))


def rounds_needed(confidence: float) -> int:
    """The fewest samples whose extremes enclose the median with ``confidence``: 8 for 0.99.

    Raises:
        ValueError: ``confidence`` is not between 0 and 1.
    """
    _check(confidence)
    return next(count for count in range(1, 1100) if _coverage(count, 1) >= confidence)


@functools.cache
def _rank(count: int, confidence: float) -> int:
    """The largest k for which k-th smallest and k-th largest reach ``confidence``; 0 if there is none."""
    _check(confidence)
    return sum(coverage >= confidence for coverage in _coverages(count))


def _coverage(count: int, rank: int) -> float:
    return next(itertools.islice(_coverages(count), rank - 1, None))


def _coverages(count: int) -> Iterator[float]:
    """The coverage of each rank, from 1 on. NOTE: from 1,024 samples on the integers exceed every float, and
    their quotient does not."""
    term, tail, total = 1, 0, 2**count
    for below in range((count + 1) // 2):
        tail += term
        term = term * (count - below) // (below + 1)
        yield 1.0 - 2 * tail / total


def _check(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
