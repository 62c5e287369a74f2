"""Figures over many runs of one sampler: curves, fractions and regret, with bootstrap intervals."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright import __version__
from tilewright.errors import TilewrightError
from tuner.replay.run import RunResult
from tuner.replay.runner import ReplayPlan
from tuner.replay.space import RecordedSpace, SpaceError

CHECKPOINTS = (10, 25, 50, 100, 200)
NEAR = 0.95
CONFIDENCE = 0.95
_RESAMPLES = 2000
_DIGITS = 6

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over the runs with its 95 % percentile-bootstrap interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of the runs after ``trials`` measured trials.

    Attributes:
        fraction: mean of optimum over the true time of the best config so far.
        near: fraction of runs at 95 % of the optimum or better.
    """

    trials: int
    fraction: Estimate
    near: Estimate


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one sampler on one space.

    Attributes:
        runs: number of runs.
        checkpoints: those within the budget, and the budget itself.
        curve: mean fraction after each measured trial; ``curve_low`` and ``curve_high`` are its interval.
        regret: mean over the runs of the relative slowdown of the final winner from the optimum.
        regret_median, regret_p95: median and 95th percentile over the runs.
        lost: number of runs without a winner, which do not count in the regret.
        measured: mean number of measured trials of a run.
        wasted: mean number of proposals of a run that did not count towards the budget.
        repeated: mean number of proposals of a run that were made before.
        sampler_ms: mean CPU milliseconds of an ask and its tell.
        device_s: mean seconds that checks and measurements of a run would have taken on the device.
        flips: mean fraction of repeated final races with another winner.
        winners: number of different configs that won.
        agreement: fraction of runs won by the most frequent winner.
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
    measured: float
    wasted: float
    repeated: float
    sampler_ms: float
    device_s: float
    flips: float
    winners: int
    agreement: float

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data, numbers to six digits."""
        return {key: _rounded(value) for key, value in dataclasses.asdict(self).items()}


def summarize(results: Sequence[RunResult], budget: int) -> Summary:
    """The figures of ``results``; a run that ended early keeps the best config it had found.

    Raises:
        SpaceError: no run found a config that works.
    """
    found = np.asarray([_filled(one.found, budget) for one in results])
    low, high = bootstrap(found)
    points = sorted({point for point in (*CHECKPOINTS, budget) if point <= budget})
    regret = np.asarray([1 / one.winner - 1 for one in results if one.winner is not None])
    if not len(regret):
        raise SpaceError(
            f"none of {len(results)} runs found a config that works within {budget} trials; allow more"
        )
    winners = collections.Counter(one.winner_config for one in results if one.winner is not None)
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
        measured=_mean([one.measured for one in results]),
        wasted=_mean([one.asked - one.measured for one in results]),
        repeated=_mean([one.repeated for one in results]),
        sampler_ms=1000 * sum(one.sampler_s for one in results) / max(1, sum(one.asked for one in results)),
        device_s=_mean([one.device_s for one in results]),
        flips=_mean([one.flips for one in results]),
        winners=len(winners),
        agreement=winners.most_common(1)[0][1] / len(results),
    )


def estimate(values: Floats) -> Estimate:
    """The mean of one value for each run, with its interval."""
    low, high = bootstrap(values[:, None])
    return Estimate(float(values.mean()), float(low[0]), float(high[0]))


def bootstrap(values: Floats) -> tuple[Floats, Floats]:
    """The percentile interval of the mean over the runs of (runs, columns) values, by resampling runs.

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


_FORMATS = (".png", ".svg")
_COLOURS = ("#1f6f8b", "#b5443c", "#6a994e", "#8e6c8a", "#c08a3e", "#4a4a4a")


class PlotUnavailable(TilewrightError):
    """matplotlib is not installed."""


def plot(summaries: Mapping[str, Summary], title: str, path: Path) -> list[Path]:
    """Draw one curve for each entry, write ``path`` as PNG and SVG, and return both paths.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable("the plot needs matplotlib: install the extra 'bench'") from error
    matplotlib.rcParams["svg.hashsalt"] = "tilewright"  # NOTE: without it each run writes another SVG
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    for index, (name, one) in enumerate(summaries.items()):
        trials, colour = range(1, len(one.curve) + 1), _COLOURS[index % len(_COLOURS)]
        axis.plot(trials, one.curve, color=colour, linewidth=1.4, label=name)
        axis.fill_between(trials, one.curve_low, one.curve_high, color=colour, alpha=0.18, linewidth=0)
    axis.axhline(NEAR, color="#999999", linewidth=0.8, linestyle=":")
    axis.set_ylim(0.5, 1.005)
    axis.set_xlabel("measured trials")
    axis.set_ylabel("optimum / time of the best found")
    axis.set_title(title, fontsize=9, loc="left")
    axis.legend(loc="lower right", fontsize=8)
    written = [path.with_name(path.name + suffix) for suffix in _FORMATS]
    for target in written:
        figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    return written


HEADERS = ("measured trials", "fraction of optimum", "95 % interval", "runs at >= 95 %")


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """One sampler on one space.

    Attributes:
        space: name of the space.
        configs, working: number of recorded configs, and of those that ran and were right.
        doubts: why the optimum that the fractions refer to may not be the fastest config.
        plan: the plan that was replayed.
        summary: figures over the runs.
        runs: results of the runs, in the order of the plan's seeds.
    """

    space: str
    configs: int
    working: int
    doubts: tuple[str, ...]
    plan: ReplayPlan
    summary: Summary
    runs: tuple[RunResult, ...]

    @classmethod
    def of(
        cls, space: RecordedSpace, plan: ReplayPlan, summary: Summary, runs: Sequence[RunResult]
    ) -> Report:
        """The report of runs on ``space``."""
        return cls(space.name, len(space), space.working, space.doubts, plan, summary, tuple(runs))

    @property
    def stem(self) -> str:
        """The name of the results file, without suffix."""
        initial = "-initial" if self.plan.initial_configs else ""
        stops = "-stops" if self.plan.min_gain_per_s else ""
        return f"replay-{self.space}-{self.plan.sampler}{initial}{stops}"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: plan, figures, and the values of each run that the figures come from."""
        plan = {field.name: getattr(self.plan, field.name) for field in dataclasses.fields(self.plan)}
        return {
            "space": self.space,
            "configs": self.configs,
            "working": self.working,
            "doubts": list(self.doubts),
            "package": __version__,
            "plan": plan | {"initial_configs": [str(config) for config in self.plan.initial_configs]},
            "summary": self.summary.to_dict(),
            "runs": [_run(one, spec.seed) for one, spec in zip(self.runs, self.plan.specs(), strict=True)],
        }

    def write(self, folder: Path) -> Path:
        """Write ``replay-SPACE-SAMPLER.json`` into a folder, and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.stem}.json"
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        return path


def rows(summary: Summary) -> list[tuple[str, ...]]:
    """The checkpoints as a table under :data:`HEADERS`."""
    return [
        (
            str(point.trials),
            f"{point.fraction.value:.3f}",
            f"{point.fraction.low:.3f} .. {point.fraction.high:.3f}",
            f"{point.near.value:.0%}",
        )
        for point in summary.checkpoints
    ]


def lines(summary: Summary) -> list[str]:
    """The other figures as lines of text."""
    regret = summary.regret
    return [
        f"regret      {regret.value:.2%} [{regret.low:.2%}, {regret.high:.2%}] mean of the final winners, "
        f"median {summary.regret_median:.2%}, p95 {summary.regret_p95:.2%}",
        f"winners     {summary.winners} in {summary.runs} runs, the commonest in {summary.agreement:.0%}; "
        f"a fresh final race flips {summary.flips:.0%}",
        f"asks        {summary.measured:.1f} a run measured, {summary.wasted:.1f} wasted, "
        f"{summary.repeated:.1f} of them repeated; {summary.sampler_ms:.2f} ms each",
        f"device      {summary.device_s:.1f} s a run of checks and measurements, had it been live",
    ]


def _run(result: RunResult, seed: int) -> dict[str, Any]:
    kept = ("winner", "winner_config", "asked", "measured", "repeated", "flips")
    return {"seed": seed} | {name: getattr(result, name) for name in kept}
