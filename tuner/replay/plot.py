"""The curves of replays: mean fraction of the optimum over measured trials, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright.errors import TilewrightError
from tuner.replay.summary import NEAR, Summary

_FORMATS = (".png", ".svg")
_COLOURS = ("#1f6f8b", "#b5443c", "#6a994e", "#8e6c8a", "#c08a3e", "#4a4a4a")


class PlotUnavailable(TilewrightError):
    """matplotlib is not installed."""


def plot(summaries: Mapping[str, Summary], title: str, path: Path) -> list[Path]:
    """Draw one curve an entry, named by its key; writes ``path`` as PNG and SVG and returns both paths.

    Raises:
        PlotUnavailable: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable("the plot needs matplotlib: install the extra 'bench'") from error
    matplotlib.rcParams["svg.hashsalt"] = "tilewright"  # NOTE: without it the SVG differs at every run
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
