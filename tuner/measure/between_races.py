"""Figures of two races compared. The interval of a figure is of its race: another race of the same kernel, or
one on another GPU of the class, may give a figure outside it."""

from __future__ import annotations

from typing import NamedTuple

# By which factor times of one kernel from two races may differ, on one GPU or two of a class: chosen on H100s
# and H200s, so that over 99 of 100 pairs of their races decide nothing, and not looked at on CPUs
# (benchmarks/lab/2026-11-30-between-races.md).
BETWEEN_RACES = 1.07


class Figure(NamedTuple):
    """A time or a speed-up, with the interval of its race."""

    value: float
    low: float
    high: float

    def over(self, other: Figure) -> Figure:
        """The ratio to the figure of another race. Its interval covers what both intervals leave open, and
        ``BETWEEN_RACES`` on both sides of the ratio; where it contains 1, the races decide nothing."""
        ratio = self.value / other.value
        low = min(self.low / other.high, ratio / BETWEEN_RACES)
        return Figure(ratio, low, max(self.high / other.low, ratio * BETWEEN_RACES))
