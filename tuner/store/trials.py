"""Trials: all of them are kept, with their raw samples and where they come from."""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.artifact import Resources
from tilewright.config import Config
from tilewright.trial import Provenance, Trial
from tuner.store import codec
from tuner.store.models import FamilySourceRow, TrialRow
from tuner.store.records import utc_now
from tuner.store.upsert import insert_new, insert_row


def add(session: Session, job_id: str, trial: Trial) -> None:
    """Keep a trial of a job.

    Raises:
        sqlalchemy.exc.IntegrityError: there is no such job, or it has a trial of this number.
    """
    if trial.provenance is not None:
        source = {"family": trial.config.family, "source_digest": trial.provenance.source_digest}
        insert_new(session, FamilySourceRow, {**source, "first_seen": utc_now()})
    insert_row(session, TrialRow, {"job_id": job_id, "created": utc_now(), **_values(trial)})


def of_job(session: Session, job_id: str, first: int = 0, limit: int | None = None) -> list[Trial]:
    """Trials of a job by number, from ``first`` on."""
    query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number >= first)
    return [_trial(row) for row in session.scalars(query.order_by(TrialRow.number).limit(limit))]


def count(session: Session, job_id: str) -> int:
    """How many trials a job has."""
    return session.scalars(select(func.count()).select_from(TrialRow).where(TrialRow.job_id == job_id)).one()


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
    )
