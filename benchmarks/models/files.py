"""Rows of a benchmark as a list in one JSON file, and their facts and samples in another one beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.pages import ReportError
from benchmarks.common.results import write_json

Row = dict[str, Any]
# Of what rows rest on: one of another is measured again.
ALIKE = ("driver", "method", "libraries", "sources")


class RowFile:
    """Rows that are told apart by the fields ``identity``; the file is written anew with each of them.

    Attributes:
        path: the file; that of the samples is beside it.
    """

    def __init__(self, path: Path, identity: Sequence[str], run: Mapping[str, Any]) -> None:
        """Take over what the file holds; ``run`` says what the rows of this run rest on.

        Raises:
            ReportError: it is there but damaged.
        """
        self.path, self._identity, self._run = path, tuple(identity), dict(run)
        self._rows = {self._key(row): row for row in _parsed(path, [])}
        self._facts: dict[str, Any] = _parsed(samples_path(path), {})

    def done(self, **identity: Any) -> bool:
        """Whether a row with these fields has a result, and its facts in :data:`ALIKE` equal those of this
        run."""
        row = self._rows.get(self._key(identity))
        return row is not None and self._counts(row)

    def keep(self, row: Row, facts: Mapping[str, Any]) -> None:
        """Add or replace a row, with what it rests on."""
        key = self._key(row)
        self._rows[key] = row
        self._facts[self._name(row)] = {**self._run, **facts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(samples_path(self.path), self._facts)
        write_json(self.path, list(self._rows.values()))

    def rows_without(self, name: str, **fields: Any) -> list[Row]:
        """The rows with such fields that have no field ``name``, of those that :meth:`done` counts."""
        return [
            row
            for row in self._rows.values()
            if self._counts(row) and name not in row and fields.items() <= row.items()
        ]

    def extend(self, row: Row) -> None:
        """Replace a row by one with more fields, which rests on the same."""
        self.keep(row, self._facts.get(self._name(row), {}))

    def _counts(self, row: Row) -> bool:
        facts = self._facts.get(self._name(row), {})
        return not row["failure"] and all(facts.get(name) == self._run[name] for name in ALIKE)

    def _name(self, row: Mapping[str, Any]) -> str:
        return "/".join(map(str, self._key(row)))

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self._identity)


def samples_path(path: Path) -> Path:
    """Where the samples of a file of rows are."""
    return path.with_suffix(".samples.json")


def summary(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    """The geometric mean and the least of each ratio named, over the rows that have it."""
    rows, parts = list(rows), list[str]()
    for name in names:
        ratios = [row[name] for row in rows if row.get(name) is not None]
        if ratios:
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            parts.append(f"{name} {mean:.3f} (geometric mean), {min(ratios):.3f} (least)")
    failed = sum(bool(row["failure"]) for row in rows)
    return "; ".join([f"{len(rows)} rows, {failed} failed", *parts])


def _parsed(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text()) if path.exists() else default
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot read {path}: {error}; move it away to start anew") from error
