"""What live re-tunes of one problem say: regret in a race of their winners, flips, seconds."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import pages
from benchmarks.search.live_retunes_job import Retune
from tuner.measure.stats import median, paired_ratio


@dataclasses.dataclass(frozen=True, slots=True)
class Regret:
    """How much slower a kernel is than the fastest of its race, as a share: 0.01 is 1 %.

    Attributes:
        value: the median over the rounds of its time over that of the fastest, minus 1; just below 0 if
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
    """The regret of each candidate of a race, the one with the lowest median first: that one is the optimum.

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


_PARTS = ("check", "measure", "idle", "search", "race", "other")
_REGRET_HEADERS = (
    "space",
    "re-tunes x trials",
    "regret: median",
    "p95",
    "most",
    "tied with the optimum",
    "different winners",
    "flip rate",
    "rank of the best recorded",
)
_SECONDS_HEADERS = ("space", "compile cache", "wall clock", "device", *_PARTS, "compilers")


def line(tune: Mapping[str, Any]) -> str:
    """One re-tune."""
    seconds = tune["seconds"]
    cold = ", nothing compiled before" if tune["cold"] else ""
    won = str(tune["config"]["knobs"]) if tune["config"] else f"no winner: {tune['failure']}"
    spent = (
        f"{tune['measured']} trials in {seconds['wall']:.1f} s ({seconds['gpu']:.1f} s of the device{cold})"
    )
    return f"seed {tune['seed']}: {spent}: {won}"


def tables(reports: Sequence[Mapping[str, Any]]) -> str:
    """Regret, and below where the seconds went, of reports with figures, in Markdown."""
    seconds = [row for report in reports for row in _seconds_rows(report)]
    regret = pages.table(_REGRET_HEADERS, [_regret_row(report) for report in reports])
    return f"{regret}\n\n{pages.table(_SECONDS_HEADERS, seconds)}\n"


def _regret_row(report: Mapping[str, Any]) -> tuple[str, ...]:
    found = report["figures"]
    winners = found["tunes"] - found["failed"]
    failed = f", {found['failed']} failed" if found["failed"] else ""
    regret = [f"{100 * found[name]:.2f} %" for name in ("regret_median", "regret_p95", "regret_most")]
    return (
        report["space"]["name"],
        f"{found['tunes']} x {report['plan']['budget']}{failed}",
        *regret,
        f"{found['in_tie_set']} of {winners}",
        str(found["different_winners"]),
        "" if found["flip_rate"] is None else f"{found['flip_rate']:.2f}",
        f"{found['best_recorded_rank']} of {len(report['race']['candidates'])}",
    )


def _seconds_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            report["space"]["name"],
            cache,
            *(_range(of[part]) for part in ("wall", "gpu")),
            *(f"{of[part]['median']:.2f}" for part in (*_PARTS, "compile")),
        )
        for cache, of in report["figures"]["seconds"].items()
    ]


def _range(of: Mapping[str, float]) -> str:
    return f"{of['median']:.1f} ({of['low']:.1f} .. {of['high']:.1f})"
