"""Trials: all of them are kept, with their raw samples and where they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.artifact import Artifact
from tilewright.schema.job import JobProgress
from tilewright.schema.trial import BestConfig, Outcome, Trial
from tuner.store import best as winners
from tuner.store import entities, exchange, jobs, records
from tuner.store.database import JobTaken, Store, insert_many_new, insert_new, insert_row
from tuner.store.models import FamilySourceRow, TrialRow
from tuner.store.records import JobRecord, utc_now


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
    new = {
        trial.number: (exchange.current_trial(trial), created)
        for trial, created in found
        if trial.number not in there
    }
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
    return records.row_values(
        TrialRow,
        trial,
        family=trial.config.family,
        source_digest=trial.provenance.source_digest if trial.provenance else None,
        config_digest=trial.config.digest,
        message=records.text(trial.message),
        median_us=trial.timing.median_us if trial.timing else None,
    )


def _trial(row: TrialRow) -> Trial:
    return records.of_row(Trial, row)


class JobRecorder:
    """The :class:`tuner.job.context.Recorder` of a claimed job; each call is one transaction.

    Belongs to the claim that stands when it is made: once the job was finished or claimed again,
    writing raises :class:`JobTaken` and changes nothing. ``is_current`` judges earlier winners, see
    :func:`tuner.store.best.put`.
    """

    def __init__(self, store: Store, job_id: str, is_current: winners.Judge = lambda _best: True) -> None:
        self._store = store
        self._is_current = is_current
        self._job_id = job_id
        with store.read() as session:
            record = jobs.get(session, job_id)
        if record is None:
            raise JobTaken(f"there is no job {job_id} to record")
        self._attempt = record.attempt

    def trials(self) -> list[Trial]:
        """Trials of this job that were already committed, by number."""
        with self._store.read() as session:
            return of_job(session, self._job_id)

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Keep a trial, its artifact, its event and the progress it makes, together.

        Raises:
            JobTaken: the job is no longer this recorder's.
            sqlalchemy.exc.IntegrityError: the job has a trial of this number.
        """
        with self._store.begin() as session:
            job = jobs.hold(session, self._job_id, self._attempt)
            if artifact is not None:
                entities.put_artifact(session, artifact)
            add(session, self._job_id, trial)
            jobs.set_progress(session, self._job_id, _advanced(job, trial))
            jobs.append_event(session, self._job_id, "trial", _summary(trial))

    def set_progress(self, progress: JobProgress) -> None:
        """Publish where the job stands.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """
        with self._store.begin() as session:
            jobs.hold(session, self._job_id, self._attempt)
            jobs.set_progress(session, self._job_id, progress)
            jobs.append_event(session, self._job_id, "progress", dataclasses.asdict(progress))

    def set_best(self, best: BestConfig) -> None:
        """Keep the winner of the final race, as found by this job.

        Raises:
            JobTaken: the job is no longer this recorder's.
            StoreError: the winner's artifact is not kept.
        """
        with self._store.begin() as session:
            jobs.hold(session, self._job_id, self._attempt)
            winners.put(session, dataclasses.replace(best, job_id=self._job_id), self._is_current)
            jobs.append_event(session, self._job_id, "best", _headline(best))


def _advanced(job: JobRecord, trial: Trial) -> JobProgress:
    progress = job.progress or JobProgress("search", measured=0, planned=job.request.max_trials)
    if trial.timing is None:
        return dataclasses.replace(progress, failed=progress.failed + 1)
    progress = dataclasses.replace(progress, measured=progress.measured + 1)
    median = trial.timing.median_us
    if trial.outcome is not Outcome.OK or (progress.best_us is not None and median >= progress.best_us):
        return progress
    return dataclasses.replace(progress, best_us=median, best_config=str(trial.config))


def _summary(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "config": trial.config.to_dict(),
        "outcome": trial.outcome,
        "message": records.text(trial.message[:500]),
        "median_us": trial.timing.median_us if trial.timing else None,
        "origin": trial.origin,
    }


def _headline(winner: BestConfig) -> dict[str, Any]:
    return {
        "config": winner.config.to_dict(),
        "artifact": winner.artifact,
        "median_us": winner.timing.median_us,
        "baseline": winner.baseline.name,
        "speedup": winner.speedup,
        "speedup_low": winner.speedup_low,
        "speedup_high": winner.speedup_high,
        "verdict": winner.verdict,
    }
