"""What lets the rows of an M ladder answer for the M between them, and how that ends where a winner goes."""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Text, cast, select, update
from sqlalchemy.orm import Session

from tilewright.config_sets.lookup import WIDEST
from tilewright.schema.problem import GemmProblem
from tuner.store import sets
from tuner.store.models import BestConfigRow, ProblemRow
from tuner.store.records import RowReader

_SAME_WEIGHT = (
    *("n", "k", "batch", "dtype", "layout"),
    *("out_dtype", "acc_dtype", "activation", "has_bias", "has_c"),
)


@dataclasses.dataclass(slots=True)
class _Row:
    """A winner that is a row of a ladder, with what was measured on it, by digest of the kernel."""

    id: int
    m: int
    artifact: str
    kernels: dict[str, Any]


def open_gap(session: Session, device_class: str, problem: GemmProblem) -> None:
    """Have no two rows answer for a problem whose winner was deleted, nor for the other M between them.

    One of the rows forgets what the winner of the other one took on it. If both have the same winner, lookups
    between that row and its other neighbour may lose it too, until one is tuned again.
    """
    found = _READER.readable(session.execute(_query(device_class, problem)))
    rows = sorted((row for row in found if row.kernels), key=lambda row: row.m)
    changed = dict[int, _Row]()
    while place := _answering(rows, problem.m):
        for row, artifact in _to_forget(rows, place):
            row.kernels.pop(artifact, None)
            changed[row.id] = row
        rows = [row for row in rows if row.kernels]
    for row in changed.values():
        kernels = list(row.kernels.values()) or None
        session.execute(update(BestConfigRow).where(BestConfigRow.id == row.id).values(kernels=kernels))
    if changed:
        sets.changed(session, device_class, BestConfigRow.id.in_(changed))


def _query(device_class: str, problem: GemmProblem) -> Any:
    row = BestConfigRow
    query = select(row.id, ProblemRow.m, row.artifact, cast(row.kernels, Text))
    query = query.join(ProblemRow, ProblemRow.id == row.problem_id)
    same = (getattr(ProblemRow, name) == getattr(problem, name) for name in _SAME_WEIGHT)
    return query.where(row.device_class == device_class, row.quarantine_id.is_(None), *same)


_READER = RowReader(
    "winner",
    lambda row_id, *_: row_id,
    lambda row_id, m, artifact, kernels: _Row(
        row_id, m, artifact, {one["artifact"]: one for one in json.loads(kernels or "null") or ()}
    ),
)


def _answering(rows: Sequence[_Row], m: int) -> int:
    """The place of the upper one of two rows that answer for an M between them; 0 if there are none."""
    place = bisect.bisect(rows, m, key=lambda row: row.m)
    if not 0 < place < len(rows) or rows[place].m > WIDEST * rows[place - 1].m:
        return 0
    both = rows[place - 1], rows[place]
    return place if any(all(row.artifact in one.kernels for one in both) for row in both) else 0


def _to_forget(rows: Sequence[_Row], place: int) -> list[tuple[_Row, str]]:
    below, above = rows[place - 1], rows[place]
    if below.artifact != above.artifact:
        return [(above, below.artifact), (below, above.artifact)]
    goes_on = place + 1 < len(rows) and rows[place + 1].artifact == above.artifact
    return [(below if goes_on else above, above.artifact)]
