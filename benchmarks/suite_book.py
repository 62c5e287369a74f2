"""The files of a suite: rows, provenance and tuning log, written again after every shape.

A file belongs to a kind of run: device class, driver, libraries and method. Another run of the kind goes on
in it and replaces the shapes it measures; a run of another kind starts it anew.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.facts import now, write_json
from benchmarks.pages import ReportError
from benchmarks.suite_rows import Row

_Found = TypeVar("_Found")
_IDENTITY = ("device_class", "driver", "method", "libraries")


class Book:
    """What is known of each shape, in memory and on disk.

    Attributes:
        path: the file of the rows; the others lie beside it.
        rows: by name of the shape.
    """

    def __init__(self, path: Path, run: dict[str, Any], order: Sequence[str]) -> None:
        """Take over what the files hold where they are of the same run; ``order`` is that of the shapes.

        Raises:
            ReportError: they are there but damaged.
        """
        self.path = path
        self._run = run
        self._places = {name: place for place, name in enumerate(order)}
        self.rows: dict[str, Row] = {}
        self._facts: dict[str, Any] = {}
        self._log: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._take_over(load_provenance(path))

    def differences(self) -> list[str]:
        """In what the run of the files before this one differs from it, in words."""
        before = load_provenance(self.path) if self.path.exists() else self._run
        return [
            f"{name}: {before.get(name)} there, {self._run[name]} now"
            for name in _IDENTITY
            if before.get(name) != self._run[name]
        ]

    def keep(self, row: Row, facts: dict[str, Any], log: dict[str, Any]) -> None:
        """Add a shape or replace it, and write all files."""
        self.rows[row.shape], self._facts[row.shape] = row, facts
        self.log(row.shape, log)

    def log(self, shape: str, log: dict[str, Any]) -> None:
        """Keep what was spent on a shape, and write all files."""
        self._log[shape] = log
        self.rows, self._facts, self._log = map(self._sorted, (self.rows, self._facts, self._log))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(tuning_path(self.path), list(self._log.values()))
        write_json(provenance_path(self.path), {"date": now(), **self._run, "shapes": self._facts})
        write_json(self.path, [dataclasses.asdict(row) for row in self.rows.values()])

    def _sorted(self, found: dict[str, _Found]) -> dict[str, _Found]:
        last = len(self._places)
        return {name: found[name] for name in sorted(found, key=lambda one: self._places.get(one, last))}

    def _take_over(self, before: dict[str, Any]) -> None:
        if any(before.get(name) != self._run[name] for name in _IDENTITY):
            return
        self.rows = {row.shape: row for row in load_rows(self.path)}
        self._facts = before.get("shapes", {})
        log = tuning_path(self.path)
        self._log = {entry["shape"]: entry for entry in _parsed(log)} if log.exists() else {}


def provenance_path(path: Path) -> Path:
    """Where what the rows rest on is kept."""
    return path.with_suffix(".provenance.json")


def tuning_path(path: Path) -> Path:
    """Where it is kept what tuning and racing took."""
    return path.with_suffix(".tuning.json")


def load_rows(path: Path) -> list[Row]:
    """The rows of a ``suite-DEVICE-DTYPE.json``.

    Raises:
        ReportError: it is not such a file.
    """
    try:
        return [Row(**row) for row in _parsed(path)]
    except TypeError as error:
        raise ReportError(f"{path} is not a list of suite rows: {error}") from error


def load_provenance(path: Path) -> dict[str, Any]:
    """What the rows of a file rest on.

    Raises:
        ReportError: the file beside it is missing or damaged.
    """
    data = _parsed(provenance_path(path))
    if not isinstance(data, dict):
        raise ReportError(f"{provenance_path(path)} is not the provenance of a suite")
    return data


def load_log(path: Path) -> Sequence[dict[str, Any]]:
    """The tuning log beside a file of rows; empty where there is none.

    Raises:
        ReportError: it is damaged.
    """
    log = tuning_path(path)
    entries: Sequence[dict[str, Any]] = _parsed(log) if log.exists() else []
    return entries


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot read {path}: {error}; move it away to start anew") from error
