"""What live re-tunes of one problem say: regret in a race of their winners, flips, seconds."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.live_retunes_job import Retune
from tuner.stats import median, paired_ratio


@dataclasses.dataclass(frozen=True, slots=True)
class Regret:
    """How much slower a kernel is than the fastest of its race, as a share: 0.01 is 1 %.

    Attributes:
        value: the median over the rounds of its time over that of the fastest, minus 1; just below 0 where
            it was faster in more rounds although its own median is higher.
        low, high: 99 % interval of that median.
    """

    value: float
    low: float
    high: float

    @property
    def tied(self) -> bool:
        """The race could not tell it from the fastest."""
        return self.low <= 0.0


def regrets(samples_us: Mapping[str, Sequence[float]]) -> dict[str, Regret]:
    """The regret of each contender of a race, the one with the lowest median first: that one is the optimum.

    The lowest of several noisy medians is flattered, so regrets err on the high side.

    Raises:
        ValueError: there are fewer than 8 rounds.
    """
    ranked = sorted(samples_us, key=lambda name: median(samples_us[name]))
    fastest = samples_us[ranked[0]]
    ratios = {name: paired_ratio(samples_us[name], fastest) for name in ranked}
    return {name: Regret(one.value - 1, one.low - 1, one.high - 1) for name, one in ratios.items()}


def flip_rate(winners: Sequence[str]) -> float | None:
    """The share of pairs of re-tunes that ended with different kernels; None for fewer than two."""
    pairs = math.comb(len(winners), 2)
    same = sum(math.comb(count, 2) for count in collections.Counter(winners).values())
    return 1 - same / pairs if pairs else None


def figures(tunes: Sequence[Retune], found: Mapping[str, Regret], best_recorded: str) -> dict[str, Any]:
    """The figures of ``tunes``, one of them successful at least.

    ``found`` holds the regrets of a race, the optimum first; ``best_recorded`` is the kernel with the lowest
    recorded time.
    """
    winners = [tune.artifact.digest for tune in tunes if tune.artifact]
    shares = [found[digest].value for digest in winners]
    return {
        "tunes": len(tunes),
        "failed": len(tunes) - len(winners),
        "regret_median": median(shares),
        "regret_p95": float(np.quantile(shares, 0.95)),
        "regret_most": max(shares),
        "in_tie_set": sum(found[digest].tied for digest in winners),
        "different_winners": len(set(winners)),
        "flip_rate": flip_rate(winners),
        "best_recorded_rank": 1 + list(found).index(best_recorded),
        "seconds": {
            name: spreads(some)
            for name, cold in (("cold", True), ("warm", False))
            if (some := [tune.seconds for tune in tunes if tune.cold is cold and tune.artifact])
        },
    }


def spreads(seconds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of each part of the seconds, the median, the lowest and the highest over the re-tunes."""
    columns = {part: [one[part] for one in seconds] for part in seconds[0]}
    return {part: {"median": median(of), "low": min(of), "high": max(of)} for part, of in columns.items()}
