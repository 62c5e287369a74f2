"""Puts the figures of the search into benchmarks/results/search.md, from the files beside it.

    python -m benchmarks.search.report

One table a recorded space, each mean with its 95 % interval: replays of tilewright
(``replay-SPACE-*.json``, written by ``tilewright replay --out``), what the heuristic configs alone reach,
then Kernel Tuner's strategies (``kernel-tuner-SPACE.json``, written by
``benchmarks/search/kernel_tuner_strategies.py``), the best at 100 trials first. Then live re-tunes
(``live-retunes-SPACE.json``, written by ``benchmarks/search/live_retunes.py``).

``search-summary.json`` gets the same figures as a list of objects, one for each space and sampler. Heuristic
configs alone are those of the spaces of ``benchmarks/spaces``, in their order, without a search.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import pages
from benchmarks.common.results import RESULTS
from benchmarks.search import live_retunes
from tuner.replay.device import RecordedFamily
from tuner.replay.formats import read_space
from tuner.replay.report import NEAR
from tuner.replay.space import RecordedSpace

PAGE = pages.PAGES / "search.md"
SUMMARY = RESULTS / "search-summary.json"
SPACES = RESULTS.parent / "spaces"
TRIALS = (10, 25, 50, 100, 200)
HEADERS = ("search", "runs", *map(str, TRIALS), ">= 95 % at 50/100/200", "CPU ms an ask")


def replayed(data: Mapping[str, Any]) -> tuple[str, ...]:
    """One row from a replay: of a sampler of tilewright, in bold, or of one of Optuna's as it comes."""
    plan, summary = data["plan"], data["summary"]
    points = {
        point["trials"]: {**point["fraction"], "near": point["near"]["value"]}
        for point in summary["checkpoints"]
    }
    fractions = {trials: (point["value"], point["low"], point["high"]) for trials, point in points.items()}
    near = {trials: point["near"] for trials, point in points.items()}
    given = f" + {len(plan['initial_configs'])} configs" if plan["initial_configs"] else ""
    sampler = plan["sampler"]
    name = sampler if sampler.startswith("optuna-") else f"**tilewright {sampler}{given}**"
    return _row(name, plan["runs"], fractions, near, summary["sampler_ms"])


def simulated(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each strategy of Kernel Tuner, the best at 100 trials first."""
    rows = []
    for one in data["strategies"]:
        points = {point["trials"]: point for point in one["checkpoints"]}
        fractions = {trials: (p["fraction"], p["low"], p["high"]) for trials, p in points.items()}
        near = {trials: point["near"] for trials, point in points.items()}
        ask_ms = 1000 * one["cpu_s_per_run"] / one["evaluations"]
        name = f"Kernel Tuner {one['strategy']}"
        rows.append((fractions[100][0], _row(name, one["runs"], fractions, near, ask_ms)))
    return [row for _, row in sorted(rows, reverse=True)]


def unsearched(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of what heuristic configs alone reach."""
    at = {trials: row[f"at{trials}"] for trials in TRIALS[1:]}
    fractions = {trials: (value, value, value) for trials, value in at.items()}
    near = {trials: float(value >= NEAR) for trials, value in at.items()}
    return _row(f"{row['initial_configs']} {row['sampler']}", row["runs"], fractions, near, 0.0)


def table(space: str, folder: Path = RESULTS) -> str:
    """Everything that was measured on a space, as Markdown."""
    own = [data for data in _read(folder, "replay-*.json") if data["space"] == space]
    own.sort(key=lambda data: (bool(data["plan"]["initial_configs"]), -_at_hundred(data)))
    rows = [replayed(data) for data in own]
    rows += [unsearched(row) for row in recorded_heuristics() if row["space"] == space]
    other = folder / f"kernel-tuner-{space}.json"
    rows += simulated(json.loads(other.read_text())) if other.exists() else []
    head = f"### {space}: {own[0]['configs']} configs, {own[0]['working']} of them work"
    return f"{head}\n\n{pages.table(HEADERS, rows)}\n"


def spaces(folder: Path = RESULTS) -> list[str]:
    """Every space that was replayed."""
    return sorted({data["space"] for data in _read(folder, "replay-*.json")})


def summarized(data: Mapping[str, Any]) -> dict[str, Any]:
    """A replay as one object: mean fractions of the optimum, the share of runs at 95 %, an interval.

    Budgets that the replay did not reach are null.
    """
    points = {one["trials"]: one for one in data["summary"]["checkpoints"]}
    fractions = {trials: one["fraction"] for trials, one in points.items()}
    return {
        "space": data["space"],
        "sampler": data["plan"]["sampler"],
        "initial_configs": len(data["plan"]["initial_configs"]),
        "runs": data["plan"]["runs"],
        **{f"at{trials}": fractions.get(trials, {}).get("value") for trials in TRIALS[1:]},
        "share95_at200": points.get(200, {}).get("near", {}).get("value"),
        "low100": fractions.get(100, {}).get("low"),
        "high100": fractions.get(100, {}).get("high"),
    }


def summarized_strategies(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Kernel Tuner's strategies on a space, each as an object of the same keys."""
    rows = []
    for one in data["strategies"]:
        points = {point["trials"]: point for point in one["checkpoints"]}
        rows.append(
            {
                "space": data["space"],
                "sampler": f"Kernel Tuner {one['strategy']}",
                "initial_configs": 0,
                "runs": one["runs"],
                **{f"at{trials}": points[trials]["fraction"] for trials in TRIALS[1:]},
                "share95_at200": points[200]["near"],
                "low100": points[100]["low"],
                "high100": points[100]["high"],
            }
        )
    return rows


def heuristics_alone(space: RecordedSpace) -> dict[str, Any] | None:
    """What a family's heuristic configs reach on a space, in their order; None for kernels of others.

    One run by true times: nothing in it is random.
    """
    family = RecordedFamily(space)
    rows = [space.row(one) for one in family.heuristic_configs(space.problem, space.device)]
    if not rows:
        return None
    best = np.fmax.accumulate([space.fraction(row) for row in rows])
    at = {trials: round(float(best[min(trials, len(rows)) - 1]), 6) for trials in TRIALS[1:]}
    return {
        "space": space.name,
        "sampler": "heuristic configs alone",
        "initial_configs": len(rows),
        "runs": 1,
        **{f"at{trials}": value for trials, value in at.items()},
        "share95_at200": float(at[200] >= NEAR),
        "low100": at[100],
        "high100": at[100],
    }


def live(folder: Path = RESULTS) -> str:
    """What live re-tunes found, as Markdown."""
    raced = [report for report in _read(folder, "live-retunes-*.json") if "figures" in report]
    return live_retunes.table(raced) if raced else "None was recorded yet.\n"


def renew(folder: Path = RESULTS) -> None:
    """Make the page and the summary of a folder from the files there.

    Raises:
        ReportError: the page has no marks.
    """
    page = folder / PAGE.name
    if not page.exists():
        page.write_text(PAGE.read_text())
    pages.include(page, "search", "\n".join(table(space, folder) for space in spaces(folder)))
    pages.include(page, "live-retunes", live(folder))
    rows = [summarized(data) for data in _read(folder, "replay-*.json")]
    for data in _read(folder, "kernel-tuner-*.json"):
        rows += summarized_strategies(data)
    rows += recorded_heuristics()
    (folder / SUMMARY.name).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


@functools.cache
def recorded_heuristics() -> list[dict[str, Any]]:
    """What heuristic configs alone reach on the spaces of the repository, found once."""
    recorded = [read_space(path) for path in sorted(SPACES.glob("*.gz"))]
    return [row for space in recorded if (row := heuristics_alone(space))]


def _read(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]


def _at_hundred(data: Mapping[str, Any]) -> float:
    points = data["summary"]["checkpoints"]
    return float(next((p["fraction"]["value"] for p in points if p["trials"] == 100), 0.0))


def _row(
    name: str,
    runs: int,
    fractions: Mapping[int, tuple[float, float, float]],
    near: Mapping[int, float],
    ask_ms: float,
) -> tuple[str, ...]:
    values = ["{:.3f} ({:.3f} .. {:.3f})".format(*fractions[t]) if t in fractions else "" for t in TRIALS]
    shares = " / ".join(f"{near[trials]:.2f}" if trials in near else "-" for trials in TRIALS[2:])
    return name, str(runs), *values, shares, f"{ask_ms:.2g}"


if __name__ == "__main__":
    renew()
