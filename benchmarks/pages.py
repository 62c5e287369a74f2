"""Tables in Markdown, and the pages of the docs that hold them between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import TilewrightError

DOCS = Path(__file__).parent.parent / "docs"


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
