"""``Chart``: the numbers of a plot, which the browser draws, the page lists and a CSV file has."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Kind = Literal["steps", "scatter", "intervals", "bars", "grid", "parallel"]
Cell = str | float | int | None
_FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # also as full-width letters
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a chart.

    Attributes:
        name: in CSV files.
        title: for people.
        unit: of the numbers; empty for text and for ratios.
    """

    name: str
    title: str
    unit: str = ""

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """A plot and its numbers.

    Attributes:
        name: unique within its page, of letters, digits, ``_`` and ``-``: files and links have it.
        kind: how ``static/charts.js`` draws it.
        title: what it shows.
        note: method, age, and what was sampled or left out.
        columns, rows: the numbers.
        options: what the kind needs besides: which columns are x and y, logarithmic axes, lines.
    """

    name: str
    kind: Kind
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def plain(self) -> dict[str, Any]:
        """What the browser draws."""
        columns = [{"name": c.name, "heading": c.heading} for c in self.columns]
        drawn = {"name": self.name, "kind": self.kind, "title": self.title, "columns": columns}
        return {**drawn, "rows": [[_short(cell) for cell in row] for row in self.rows], **self.options}

    @property
    def csv(self) -> str:
        """The numbers as CSV, with a line of names and units first, by RFC 4180."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow([_no_formula(f"{c.name} ({c.unit})" if c.unit else c.name) for c in self.columns])
        writer.writerows([_no_formula(cell) for cell in row] for row in self.rows)
        return text.getvalue()


def _short(cell: Cell) -> Cell:
    """A number with six digits: more than a plot shows, and half of its bytes."""
    return float(f"{cell:.6g}") if isinstance(cell, float) else cell


def _no_formula(cell: Cell) -> Cell:
    """Text that no spreadsheet takes for a formula; numbers are left as they are."""
    risky = isinstance(cell, str) and cell.lstrip()[:1] in _FORMULAS and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if risky else cell
