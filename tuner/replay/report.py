"""The result of a replay on disk and on the terminal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright import __version__
from tuner.replay.run import RunResult
from tuner.replay.runner import ReplayPlan
from tuner.replay.space import RecordedSpace
from tuner.replay.summary import Summary

HEADERS = ("measured trials", "fraction of optimum", "95 % interval", "runs at >= 95 %")


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """One policy on one space.

    Attributes:
        space: name of the space; ``valid_configs``: its size.
        plan: what was replayed.
        summary: the figures.
        runs: one a run, in the order of the plan's seeds.
    """

    space: str
    valid_configs: int
    plan: ReplayPlan
    summary: Summary
    runs: tuple[RunResult, ...]

    @classmethod
    def of(
        cls, space: RecordedSpace, plan: ReplayPlan, summary: Summary, runs: Sequence[RunResult]
    ) -> Report:
        """The report on runs on ``space``."""
        return cls(space.name, len(space), plan, summary, tuple(runs))

    @property
    def stem(self) -> str:
        """The file name of its results, without suffix."""
        seeded = "-seeded" if self.plan.seeds else ""
        return f"replay-{self.space}-{self.plan.policy}{seeded}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: plan, figures, and of each run what the figures come from."""
        plan = {field.name: getattr(self.plan, field.name) for field in dataclasses.fields(self.plan)}
        return {
            "space": self.space,
            "valid_configs": self.valid_configs,
            "package": __version__,
            "plan": plan | {"seeds": [str(config) for config in self.plan.seeds]},
            "summary": self.summary.to_dict(),
            "runs": [_run(one, spec.seed) for one, spec in zip(self.runs, self.plan.specs(), strict=True)],
        }

    def write(self, folder: Path) -> Path:
        """Write ``replay-SPACE-POLICY.json`` into a folder; the path."""
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
    """The other figures in words."""
    regret = summary.regret
    return [
        f"regret      {regret.value:.2%} [{regret.low:.2%}, {regret.high:.2%}] mean of the final winners, "
        f"median {summary.regret_median:.2%}, p95 {summary.regret_p95:.2%}",
        f"winners     {summary.winners} in {summary.runs} runs, the commonest in {summary.agreement:.0%}; "
        f"a fresh final race flips {summary.flips:.0%}",
        f"asks        {summary.wasted:.1f} a run wasted, {summary.repeated:.1f} of them repeated; "
        f"{summary.sampler_ms:.2f} ms each",
        f"device      {summary.device_s:.1f} s a run of checks and measurements, had it been live",
    ]


def _run(result: RunResult, seed: int) -> dict[str, Any]:
    kept = ("winner", "winner_config", "asked", "measured", "repeated", "flips")
    return {"seed": seed} | {name: getattr(result, name) for name in kept}
