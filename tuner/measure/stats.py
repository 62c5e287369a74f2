"""Medians with distribution-free confidence intervals, and the comparison of candidates of a race.

Every interval consists of order statistics. For any distribution, the number of samples below its
median is Binomial(n, 1/2), so the k-th smallest and the k-th largest of n independent samples
enclose the median with probability 1 - 2 P(Binomial(n, 1/2) <= k - 1).

A race may be looked at while it runs. :func:`surely_behind` holds however often it is asked. An interval at
which a race may end early, and the one at its end, are each taken at :func:`of_looks`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.99


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A median with its interval, in the unit of the samples.

    Attributes:
        value: the median.
        low, high: order statistics that enclose it.
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
        value: the median over the rounds of a race; above 1 if the candidate is faster.
        low, high: interval of that median at the requested confidence.
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


def paired_ratio(base: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """The speed of ``candidate`` relative to ``base``, from times taken in the same rounds.

    The ratio within a round cancels effects on both (clocks, other processes). The interval is that of the
    sign test. It holds if the sign of a round is independent of the others, which the random order of each
    round ensures.

    Raises:
        ValueError: the rows differ in length, hold a time that is not positive, or have too few
            rounds to reach ``confidence``.
    """
    if len(base) != len(candidate):
        raise ValueError(f"paired rows must be equally long, got {len(base)} and {len(candidate)} rounds")
    if not all(time > 0 for time in (*base, *candidate)):
        raise ValueError("times must be positive")
    if len(base) < rounds_needed(confidence):
        needed = rounds_needed(confidence)
        raise ValueError(f"confidence {confidence} needs {needed} rounds or more, got {len(base)}")
    interval = median_interval([b / c for b, c in zip(base, candidate, strict=True)], confidence)
    return Ratio(interval.value, interval.low, interval.high)


def of_looks(looks: int, confidence: float = CONFIDENCE) -> float:
    """The confidence of each of several intervals, any of which may be the last, for one of them in all."""
    return 1.0 - (1.0 - confidence) / looks


def settled(ratio: Ratio) -> bool:
    """Whether an interval says enough: it is 0.6 % wide, or 1 % and without 1."""
    width = (ratio.high - ratio.low) / ratio.value
    return width <= _NARROW or (width <= _DECIDED and not ratio.undecided)


_NARROW, _DECIDED = 0.006, 0.01
FEWEST_TO_LEAVE = 3
LEAVES = 0.01
_EFFECT = 3.0


def surely_behind(rows: Sequence[Sequence[float]]) -> list[int]:
    """The candidates that are slower than the one with the lowest mean of the logarithms.

    The fastest candidate is among them with a probability of at most 1 %, whenever and however often this is
    asked during a race. The evidence of a difference is a Bayes factor: its prior is normal with 3 standard
    deviations of the noise, which all candidates share, and the noise level has the Haar prior. Where two
    candidates are equal it is a martingale of mean 1 (Robbins 1970; Perez-Ortiz et al. 2022), which exceeds x
    with a probability of at most 1/x. Differences between rounds cancel. This assumes noise that is normal
    and alike; a difference is reported by :func:`paired_ratio`, which does not.

    Args:
        rows: one row of times for each candidate, all from the same rounds.

    Returns:
        Indices of rows; empty for fewer than 3 rounds.
    """
    count, rounds = len(rows), len(rows[0])
    if count < 2 or rounds < FEWEST_TO_LEAVE:
        return []
    logs = [[math.log(time) for time in row] for row in rows]
    means = [math.fsum(row) / rounds for row in logs]
    whole = math.fsum(means) / count
    shifts = [math.fsum(column) / count - whole for column in zip(*logs, strict=True)]
    residuals = (
        log - mean - shift
        for row, mean in zip(logs, means, strict=True)
        for log, shift in zip(row, shifts, strict=True)
    )
    freedom = (count - 1) * (rounds - 1)
    variance = max(math.fsum(one * one for one in residuals) / freedom, _LEAST_VARIANCE)
    fastest, prior = min(means), 1.0 + 0.5 * rounds * _EFFECT**2
    needed = math.log((count - 1) / LEAVES)

    def evidence(mean: float) -> float:
        """ln of the Bayes factor."""
        share = (mean - fastest) ** 2 / (2.0 * variance / rounds) / freedom
        return 0.5 * ((freedom + 1) * (math.log1p(share) - math.log1p(share / prior)) - math.log(prior))

    return [index for index, mean in enumerate(means) if evidence(mean) > needed]


_LEAST_VARIANCE = 1e-12  # of the logarithms of times: a noise of one part in a million


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
    ranks = range(1, (count + 1) // 2 + 1)
    return sum(_coverage(count, rank) >= confidence for rank in ranks)


def _coverage(count: int, rank: int) -> float:
    tail = sum(math.comb(count, below) for below in range(rank))
    return 1.0 - 2.0 * tail / float(2**count)


def _check(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
