"""Figures by matplotlib, which only whoever draws them needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

_FORMATS = (".png", ".svg")


class PlotUnavailable(TilewrightError):
    """matplotlib is not installed."""


def figure(width: float, height: float, again: str) -> Any:
    """An empty figure of the given inches; ``again`` is the command that draws it later.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable(
            f"the plot needs matplotlib: install the extra 'bench', then run {again}"
        ) from error
    matplotlib.rcParams["svg.hashsalt"] = "tilewright"  # NOTE: without it the SVG differs at every run
    return Figure(figsize=(width, height), layout="constrained")


def save(drawn: Any, path: Path) -> list[Path]:
    """Write a figure beside ``path`` as PNG and SVG, the same bytes for the same figure; both paths."""
    written = [path.with_suffix(suffix) for suffix in _FORMATS]
    for target in written:
        drawn.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    return written
