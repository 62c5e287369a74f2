"""Trials: all of them are kept, with their raw samples and where they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.artifact import Resources
from tilewright.config import Config
from tilewright.trial import Provenance, Trial
from tuner.store import codec
from tuner.store.models import FamilySourceRow, TrialRow
from tuner.store.records import utc_now
from tuner.store.upsert import insert_many_new, insert_new, insert_row


def add(session: Session, job_id: str, trial: Trial) -> None:
    """Keep a trial of a job.

    Raises:
        sqlalchemy.exc.IntegrityError: there is no such job, or it has a trial of this number.
    """
    now = utc_now()
    _keep_source(session, trial, now)
    insert_row(session, TrialRow, {"job_id": job_id, "created": now, **_values(trial)})


def merge(session: Session, job_id: str, found: Sequence[tuple[Trial, datetime]]) -> int:
    """Keep those trials, with when they ended, whose numbers the job lacks; gives how many these are.

    Raises:
        sqlalchemy.exc.IntegrityError: there is no such job.
    """
    there = set(session.scalars(select(TrialRow.number).where(TrialRow.job_id == job_id)))
    new = {trial.number: (trial, created) for trial, created in found if trial.number not in there}
    sources = {(t.config.family, t.provenance.source_digest): t for t, _ in new.values() if t.provenance}
    for trial in sources.values():
        _keep_source(session, trial, new[trial.number][1])
    rows = [{"job_id": job_id, "created": created, **_values(trial)} for trial, created in new.values()]
    insert_many_new(session, TrialRow, rows)
    return len(new)


def dated(
    session: Session, job_id: str, family: str | None, first: int, limit: int
) -> list[tuple[Trial, datetime]]:
    """Trials of a job, of one family or of all, by number from ``first`` on, with when they ended."""
    query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number >= first)
    query = query if family is None else query.where(TrialRow.family == family)
    rows = session.scalars(query.order_by(TrialRow.number).limit(limit))
    return [(_trial(row), row.created) for row in rows]


def of_job(session: Session, job_id: str, first: int = 0, limit: int | None = None) -> list[Trial]:
    """Trials of a job by number, from ``first`` on."""
    query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number >= first)
    return [_trial(row) for row in session.scalars(query.order_by(TrialRow.number).limit(limit))]


def count(session: Session, job_id: str) -> int:
    """How many trials a job has."""
    return session.scalars(select(func.count()).select_from(TrialRow).where(TrialRow.job_id == job_id)).one()


def _keep_source(session: Session, trial: Trial, seen: datetime) -> None:
    if trial.provenance is not None:
        source = {"family": trial.config.family, "source_digest": trial.provenance.source_digest}
        insert_new(session, FamilySourceRow, {**source, "first_seen": seen})


def _values(trial: Trial) -> dict[str, Any]:
    asdict = dataclasses.asdict
    return {
        "number": trial.number,
        "family": trial.config.family,
        "source_digest": trial.provenance.source_digest if trial.provenance else None,
        "config": trial.config.to_dict(),
        "config_digest": trial.config.digest,
        "outcome": trial.outcome,
        "message": codec.text(trial.message),
        "median_us": trial.timing.median_us if trial.timing else None,
        "timing": codec.maybe(asdict, trial.timing),
        "artifact": trial.artifact,
        "resources": codec.maybe(asdict, trial.resources),
        "provenance": codec.maybe(asdict, trial.provenance),
        "compile_s": trial.compile_s,
        "check_s": trial.check_s,
        "measure_s": trial.measure_s,
        "origin": trial.origin,
        "repeatable": trial.repeatable,
    }


def _trial(row: TrialRow) -> Trial:
    return Trial(
        number=row.number,
        config=Config.from_dict(row.config),
        outcome=row.outcome,
        message=row.message,
        timing=codec.maybe(codec.timing, row.timing),
        artifact=row.artifact,
        resources=codec.maybe(lambda data: Resources(**data), row.resources),
        provenance=codec.maybe(lambda data: Provenance(**data), row.provenance),
        compile_s=row.compile_s,
        check_s=row.check_s,
        measure_s=row.measure_s,
        origin=row.origin,
        repeatable=row.repeatable,
    )
