"""The pictures of a suite: the ratio of every shape with its interval, and the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.pages import figure, save
from benchmarks.suite.files import Row
from benchmarks.suite.means import compute_roof, intensity

_OURS, _VENDOR, _TORCH, _LINE = "#1f6f8b", "#b5443c", "#e0a030", "#888888"


def plot_ratios(rows: Sequence[Row], path: Path) -> list[Path]:
    """One bar a shape from 1 to its ratio, with the 99 % interval; PNG and SVG beside ``path``.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    compared = [row for row in rows if row.ratio_vs_cublaslt_best is not None]
    drawn = figure(9, 0.24 * len(compared) + 1.2, _again(path))
    axis = drawn.subplots()
    places = range(len(compared))
    ratios = [row.ratio_vs_cublaslt_best or 1.0 for row in compared]
    colours = [_OURS if ratio >= 1 else _VENDOR for ratio in ratios]
    below = [ratio - (row.ci_low or ratio) for row, ratio in zip(compared, ratios, strict=True)]
    above = [(row.ci_high or ratio) - ratio for row, ratio in zip(compared, ratios, strict=True)]
    axis.barh(places, [ratio - 1 for ratio in ratios], left=1, color=colours, height=0.7)
    axis.errorbar(ratios, places, xerr=[below, above], fmt="none", ecolor="black", elinewidth=1, capsize=2)
    for place, row in zip(places, compared, strict=True):
        if row.torch_us:
            axis.plot(row.torch_us / row.ours_us, place, "|", color=_TORCH, markersize=9)
    axis.axvline(1, color=_LINE, linewidth=1)
    if compared:
        axis.set_xscale("log")
    axis.set_xticks(_ticks(ratios), [f"{tick:g}" for tick in _ticks(ratios)])
    axis.minorticks_off()
    axis.set_yticks(places, [f"{row.shape}  ({row.group})" for row in compared], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("time of the vendor's best algorithm over ours (bars), of torch over ours (|)")
    return save(drawn, _beside(path, "ratios"))


def plot_roofline(rows: Sequence[Row], device: dict[str, Any], path: Path) -> list[Path]:
    """TFLOP/s over operations a byte, ours and the vendor's, under the device's limits at its highest
    clock; PNG and SVG beside ``path``.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    drawn = figure(8, 5, _again(path))
    axis = drawn.subplots()
    across = [intensity(row) for row in rows]
    axis.plot(across, [row.ours_tflops for row in rows], "o", color=_OURS, markersize=5, label="tilewright")
    vendor = [row for row in rows if row.cublaslt_best_us]
    axis.plot(
        [intensity(row) for row in vendor],
        [row.problem.flops / (row.cublaslt_best_us or 1.0) / 1e6 for row in vendor],
        "x",
        color=_VENDOR,
        markersize=5,
        label="the vendor's best",
    )
    _roofs(axis, rows, device, (min(across, default=1) / 2, max(across, default=1) * 2))
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations a byte of A, B and D")
    axis.set_ylabel("TFLOP/s")
    axis.legend(loc="lower right", fontsize=8)
    return save(drawn, _beside(path, "roofline"))


def _roofs(axis: Any, rows: Sequence[Row], device: dict[str, Any], span: tuple[float, float]) -> None:
    compute = max((limit for row in rows if (limit := compute_roof(row, device))), default=None)
    if compute is None or not device["memory_gbps"]:
        return
    ridge = compute * 1e3 / device["memory_gbps"]
    bends = sorted({span[0], min(max(ridge, span[0]), span[1]), span[1]})
    limits = [min(compute, x * device["memory_gbps"] / 1e3) for x in bends]
    label = f"{device['memory_gbps']} GB/s, {compute:.0f} TFLOP/s at the highest clock of the run"
    axis.plot(bends, limits, color=_LINE, linewidth=1, label=label)


def _ticks(ratios: Sequence[float]) -> list[float]:
    low, high = min(ratios, default=1.0), max(ratios, default=1.0)
    steps = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    return [step for step in steps if low / 1.2 <= step <= high * 1.2]


def _again(path: Path) -> str:
    return f"python -m benchmarks.suite.report {path}"


def _beside(path: Path, kind: str) -> Path:
    """``suite-DEVICE-DTYPE.json`` to ``suite-DEVICE-DTYPE-ratios.json``, whose ending the format replaces."""
    return path.with_name(f"{path.stem}-{kind}{path.suffix}")
