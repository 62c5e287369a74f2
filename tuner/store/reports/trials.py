"""The trials of a job as a plot needs them: thousands of rows, without their samples.

Every query reads one job by the primary key of its trials.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, func, or_, select, type_coerce
from sqlalchemy.orm import Session

from tilewright.schema.codec import KnobValue
from tilewright.schema.config import Config
from tilewright.schema.trial import Outcome, Trial
from tuner.store import records
from tuner.store.models import TrialRow
from tuner.store.records import RowReader

_SEEN = (Outcome.OK.value, Outcome.PRUNED.value)


class Point(NamedTuple):
    """A trial in a plot: ``median_us`` is None if it was not measured."""

    number: int
    family: str
    outcome: str
    median_us: float | None

    @property
    def measured(self) -> bool:
        """Whether the trial has a time."""
        return self.median_us is not None and self.outcome in _SEEN


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A measured config with its knobs by name."""

    number: int
    family: str
    median_us: float
    knobs: dict[str, KnobValue]


def outcomes(session: Session, job_id: str) -> dict[str, int]:
    """How many trials of a job there are of each outcome that occurs."""
    query = select(TrialRow.outcome, func.count()).where(TrialRow.job_id == job_id)
    rows = session.execute(query.group_by(TrialRow.outcome)).all()
    return {str(outcome): count for outcome, count in rows}


def points(session: Session, job_id: str, m: int, after: int = -1) -> list[Point]:
    """The trials of a job for the problem of an M whose numbers follow ``after``, in their order."""
    # NOTE: as text, since making an Outcome of it takes longer than all else.
    outcome = type_coerce(TrialRow.outcome, String)
    query = select(TrialRow.number, TrialRow.family, outcome, TrialRow.median_us)
    query = query.where(TrialRow.job_id == job_id, _of_row(m), TrialRow.number > after)
    query = query.order_by(TrialRow.number)
    return [Point._make(row) for row in session.execute(query)]


def measured(session: Session, job_id: str, numbers: Collection[int]) -> list[Measured]:
    """Those of the trials of a job with these numbers that were measured, without their samples."""
    columns = (TrialRow.number, TrialRow.family, TrialRow.median_us, TrialRow.config)
    query = select(*columns).where(TrialRow.job_id == job_id, TrialRow.number.in_(numbers))
    rows = session.execute(query.order_by(TrialRow.number)).all()
    found = ((number, family, median, _knobs(config)) for number, family, median, config in rows)
    return [Measured(number, family, us, knobs) for number, family, us, knobs in found if us is not None]


def medians(session: Session, job_id: str, m: int, configs: Sequence[Config]) -> dict[Config, float]:
    """The medians of those of the configs that a job measured for the problem of an M, in microseconds."""
    by_digest = {config.digest: config for config in configs}
    query = select(TrialRow.config_digest, TrialRow.median_us)
    query = query.where(TrialRow.config_digest.in_(by_digest), TrialRow.job_id == job_id, _of_row(m))
    rows = session.execute(query.where(TrialRow.median_us.is_not(None))).all()
    return {by_digest[digest]: median for digest, median in rows if median is not None}


def of_configs(session: Session, job_id: str, m: int, configs: Sequence[Config]) -> list[Trial]:
    """The trials of a job that tried one of these configs for the problem of an M, with their samples where
    those are kept."""
    digests = [config.digest for config in configs]
    query = select(TrialRow).where(TrialRow.config_digest.in_(digests), TrialRow.job_id == job_id, _of_row(m))
    return _READER.readable(session.execute(query.order_by(TrialRow.number)))


def _of_row(m: int) -> ColumnElement[bool]:
    """Whether a trial is of the row M of a ladder, or of a job of one M."""
    return or_(TrialRow.m.is_(None), TrialRow.m == m)


def _knobs(config: dict[str, Any]) -> dict[str, KnobValue]:
    # NOTE: not decoded: that takes 20 times as long, and what is no knob is drawn nowhere.
    knobs = config.get("knobs")
    return knobs if isinstance(knobs, dict) else {}


_READER = RowReader(
    "trial", lambda row: f"{row.number} of job {row.job_id}", lambda row: records.of_row(Trial, row)
)
