"""What many runs of one policy say: curves, shares and regret, with bootstrap intervals."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.replay.run import RunResult
from tuner.replay.space import SpaceError

CHECKPOINTS = (10, 25, 50, 100, 200)
NEAR = 0.95
CONFIDENCE = 0.95
_RESAMPLES = 2000
_DIGITS = 6

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A value over the runs with its 95 % percentile-bootstrap interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the runs stand after ``trials`` measured trials.

    Attributes:
        fraction: mean of optimum over true time of what was found so far.
        near: share of runs at 95 % of the optimum or better.
    """

    trials: int
    fraction: Estimate
    near: Estimate


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one policy on one space.

    Attributes:
        runs: how many.
        checkpoints: those within the budget, and the budget itself.
        curve: mean fraction after each measured trial; ``curve_low`` and ``curve_high`` its interval.
        regret: mean over the runs of how much slower the winner of the final race is than the optimum;
            ``regret_median``, ``regret_p95``: over the runs; ``lost`` runs, not counted here, had no winner.
        wasted: mean number of proposals a run that did not count; ``repeated``: of those, made before.
        sampler_ms: mean CPU milliseconds an ask, the tell included.
        device_s: mean seconds that a run would have spent on checks and measurements.
        flips: mean share of fresh final races that another finalist wins.
        winners: how many different configs won; ``agreement``: share of runs that the commonest won.
    """

    runs: int
    checkpoints: tuple[Checkpoint, ...]
    curve: tuple[float, ...]
    curve_low: tuple[float, ...]
    curve_high: tuple[float, ...]
    regret: Estimate
    regret_median: float
    regret_p95: float
    lost: int
    wasted: float
    repeated: float
    sampler_ms: float
    device_s: float
    flips: float
    winners: int
    agreement: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, numbers to six digits."""
        return {key: _rounded(value) for key, value in dataclasses.asdict(self).items()}


def summarize(results: Sequence[RunResult], budget: int) -> Summary:
    """The figures of ``results``; a run that ended early keeps what it had found.

    Raises:
        SpaceError: no run found anything that works.
    """
    found = np.asarray([_filled(one.found, budget) for one in results])
    low, high = bootstrap(found)
    points = sorted({point for point in (*CHECKPOINTS, budget) if point <= budget})
    regret = np.asarray([1 / one.winner - 1 for one in results if one.winner is not None])
    if not len(regret):
        raise SpaceError(f"none of {len(results)} runs found a config that works within {budget} trials")
    winners = collections.Counter(one.winner_config for one in results)
    return Summary(
        runs=len(results),
        checkpoints=tuple(_checkpoint(found, point) for point in points),
        curve=tuple(found.mean(axis=0).tolist()),
        curve_low=tuple(low.tolist()),
        curve_high=tuple(high.tolist()),
        regret=estimate(regret),
        regret_median=float(np.median(regret)),
        regret_p95=float(np.quantile(regret, 0.95)),
        lost=len(results) - len(regret),
        wasted=_mean([one.asked - one.measured for one in results]),
        repeated=_mean([one.repeated for one in results]),
        sampler_ms=1000 * sum(one.sampler_s for one in results) / max(1, sum(one.asked for one in results)),
        device_s=_mean([one.device_s for one in results]),
        flips=_mean([one.flips for one in results]),
        winners=len(winners),
        agreement=winners.most_common(1)[0][1] / len(results),
    )


def estimate(values: Floats) -> Estimate:
    """The mean of one value a run, with its interval."""
    low, high = bootstrap(values[:, None])
    return Estimate(float(values.mean()), float(low[0]), float(high[0]))


def bootstrap(values: Floats) -> tuple[Floats, Floats]:
    """Percentile interval of the mean over the runs, of (runs, columns) values: runs drawn with replacement.

    Efron, "Bootstrap methods: another look at the jackknife" (1979). The same values give the same interval.
    """
    runs = len(values)
    drawn = np.random.default_rng(0).multinomial(runs, np.full(runs, 1 / runs), size=_RESAMPLES)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn @ values / runs, (tail, 1 - tail), axis=0)
    return low, high


def _checkpoint(found: Floats, trials: int) -> Checkpoint:
    at = found[:, trials - 1]
    return Checkpoint(trials, estimate(at), estimate((at >= NEAR).astype(float)))


def _filled(found: Sequence[float], budget: int) -> list[float]:
    kept = list(found[:budget])
    return kept + [kept[-1] if kept else 0.0] * (budget - len(kept))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
