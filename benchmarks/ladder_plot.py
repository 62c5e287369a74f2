"""The plot of a ladder: TFLOP/s of each rung with the seed's figure beside it, cuBLAS as a line."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import figure, save
from benchmarks.ladder_rows import Row

_BAR = 0.4
_HERE, _SEED, _VENDOR = "#1f6f8b", "#c9c9c9", "#b5443c"


def plot(rows: Sequence[Row], path: Path) -> list[Path]:
    """Draw the rungs of every seed; writes ``path`` as PNG and SVG and returns both paths.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    seeds = [(seed, list(group)) for seed, group in itertools.groupby(rows, key=lambda row: row.seed)]
    heights = [sum(row.family != "cublaslt" for row in group) + 1 for _, group in seeds]
    again = f"python -m benchmarks.ladder_report {path}"
    drawn = figure(9, 0.32 * sum(heights) + 0.8 * len(seeds), again)
    axes = drawn.subplots(len(seeds), 1, squeeze=False, height_ratios=heights)
    for axis, (seed, group) in zip(axes[:, 0], seeds, strict=True):
        _draw(axis, seed, group)
    axes[0, 0].legend(loc="lower right", fontsize=7)
    axes[-1, 0].set_xlabel("TFLOP/s")
    return save(drawn, path)


def _draw(axis: Any, seed: str, group: Sequence[Row]) -> None:
    rungs = [row for row in group if row.family != "cublaslt"]
    places = range(len(rungs))
    axis.barh(places, [row.tflops or 0 for row in rungs], _BAR, color=_HERE, label="here")
    axis.barh(
        [place + _BAR for place in places],
        [row.seed_tflops or 0 for row in rungs],
        _BAR,
        color=_SEED,
        label="seed",
    )
    for place, row in zip(places, rungs, strict=True):
        if row.pct_cublas is not None:
            axis.text(row.tflops, place, f" {row.pct_cublas:.0f} %", va="center", fontsize=7)
    best = max((row.tflops or 0 for row in group if row.family == "cublaslt"), default=0)
    if best:
        axis.axvline(best, color=_VENDOR, linewidth=1, label="fastest cuBLAS")
    axis.set_yticks([place + _BAR / 2 for place in places], [row.rung for row in rungs], fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.invert_yaxis()
    axis.set_title(f"seed {seed}", loc="left", fontsize=9)
