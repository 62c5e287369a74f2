"""Tables in Markdown, and the pages under ``benchmarks/results`` that hold them between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

PAGES = Path(__file__).parents[1] / "results"


class ReportError(TilewrightError):
    """A page or a file lacks what a report needs; the message names it."""


def marks(name: str) -> tuple[str, str]:
    """The lines around the generated part of a page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def include(page: Path, name: str, table: str) -> None:
    """Put a table between the marks of a page.

    Raises:
        ReportError: the page has no marks.
    """
    first, last = marks(name)
    head, begin, rest = page.read_text().partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise ReportError(f"{page} lacks the lines {first} and {last} around its table")
    page.write_text(f"{head}{first}\n{table}{last}{tail}")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without a line break at its end."""
    return "\n".join(map(_line, (headers, ["---"] * len(headers), *rows)))


def number(value: float | None) -> str:
    """With one decimal from 10 on, with three digits below; empty for None."""
    if value is None:
        return ""
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


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
