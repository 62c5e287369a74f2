"""Trials: all of them are kept, with their raw samples and where they come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from tilewright.artifact import Artifact
from tilewright.schema.codec import encode
from tilewright.schema.config import Config
from tilewright.schema.entries import Import
from tilewright.schema.job import JobProgress
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Outcome, Provenance, Trial
from tuner.store import best as winners
from tuner.store import entities, exchange, jobs, records
from tuner.store.database import (
    JobTaken,
    Patience,
    Store,
    Values,
    at_once,
    insert_many_new,
    insert_new,
    insert_row,
    lock_results,
)
from tuner.store.faults import quarantine
from tuner.store.models import FamilySourceRow, TrialRow
from tuner.store.queue import claims
from tuner.store.queue.claims import Held
from tuner.store.records import RowReader, Unreadable, utc_now

R = TypeVar("R")


def add(session: Session, job_id: str, trial: Trial) -> None:
    """Keep a trial of a job.

    Raises:
        sqlalchemy.exc.IntegrityError: there is no such job, or it has a trial of this number.
    """
    values = _values(trial, utc_now())
    _keep_source(session, values["family"], values["source_digest"], values["created"])
    insert_row(session, TrialRow, {"job_id": job_id, **values})


def prepared(trial: Trial, created: datetime) -> Values:
    """A trial that another store saw end, for :func:`merge`; so its transaction is short."""
    return _values(exchange.current_trial(trial), created)


def merge(session: Session, job_id: str, found: Sequence[Values], entering: Import) -> list[int]:
    """Keep the :func:`prepared` trials whose numbers the job lacks; returns these numbers. A job of this
    store takes none, and neither does a job whose import was signed otherwise.

    Raises:
        sqlalchemy.exc.IntegrityError: there is no such job.
    """
    if not found or not exchange.takes_trials(session, job_id, entering):
        return []
    numbers = [values["number"] for values in found]
    near = TrialRow.number.between(min(numbers), max(numbers))
    there = set(session.scalars(select(TrialRow.number).where(TrialRow.job_id == job_id, near)))
    new = {values["number"]: values for values in found if values["number"] not in there}
    sources = {(one["family"], one["source_digest"]): one["created"] for one in new.values()}
    for (family, digest), created in sources.items():
        _keep_source(session, family, digest, created)
    insert_many_new(session, TrialRow, [{"job_id": job_id, **values} for values in new.values()])
    return list(new)


def dated(
    session: Session, job_id: str, family: str | None, first: int, limit: int
) -> list[tuple[Trial, datetime]]:
    """Trials of a job, of one family or of all, by number from ``first`` on, with when they ended."""
    query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number >= first)
    query = query if family is None else query.where(TrialRow.family == family)
    return _DATED.page(session, query.order_by(TrialRow.number), limit, _following)


def of_job(session: Session, job_id: str, first: int = 0, limit: int | None = None) -> list[Trial]:
    """Trials of a job by number, from ``first`` on."""
    query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number >= first)
    return _READER.page(session, query.order_by(TrialRow.number), limit, _following)


def unreadable(session: Session, job_id: str) -> list[Unreadable]:
    """The trials of a job that this release cannot read."""
    query = select(TrialRow).where(TrialRow.job_id == job_id).order_by(TrialRow.number)
    return _READER.unreadable(session.execute(query.execution_options(yield_per=100)))


def count(session: Session, job_id: str) -> int:
    """How many trials a job has."""
    return session.scalars(select(func.count()).select_from(TrialRow).where(TrialRow.job_id == job_id)).one()


def _is_kept(session: Session, job_id: str, trial: Trial) -> bool:
    of_config = select(TrialRow.outcome, TrialRow.median_us).where(
        TrialRow.job_id == job_id,
        TrialRow.number == trial.number,
        TrialRow.config_digest == trial.config.digest,
    )
    found = session.execute(of_config).one_or_none()
    return found == (trial.outcome, trial.timing.median_us if trial.timing else None)


def _keep_source(session: Session, family: str, digest: str | None, seen: datetime) -> None:
    if digest is not None:
        values = {"family": family, "source_digest": digest, "first_seen": seen}
        insert_new(session, FamilySourceRow, values)


def _values(trial: Trial, created: datetime) -> dict[str, Any]:
    return records.row_values(
        TrialRow,
        trial,
        family=trial.config.family,
        source_digest=trial.provenance.source_digest if trial.provenance else None,
        config_digest=trial.config.digest,
        message=records.text(trial.message),
        median_us=trial.timing.median_us if trial.timing else None,
        sampled=created if trial.timing else None,
        created=created,
    )


def _trial(row: TrialRow) -> Trial:
    return records.of_row(Trial, row)


def _id(row: TrialRow) -> str:
    return f"{row.number} of job {row.job_id}"


def _following(row: TrialRow) -> ColumnElement[bool]:
    return TrialRow.number > row.number


_READER = RowReader("trial", _id, _trial)
_DATED = RowReader("trial", _id, lambda row: (_trial(row), row.created))


class JobRecorder:
    """Stores the trials and winners of a claimed job; each call is one transaction, which ``patience`` runs.

    Belongs to the claim that stands when it is made: once the job was finished or claimed again,
    writing raises :class:`JobTaken` and changes nothing.
    """

    def __init__(self, store: Store, job_id: str, device: str = "", patience: Patience = at_once) -> None:
        """``device`` says in words where it runs, for what is quarantined.

        Raises:
            JobTaken: there is no such job.
        """
        self._store, self._patience = store, patience
        self._device = device
        self._job_id = job_id
        with store.read() as session:
            record = jobs.get(session, job_id)
        if record is None:
            raise JobTaken(f"there is no job {job_id} to record")
        self._attempt = record.attempt
        self._ladder, self._device_class = record.request.ladder, record.device_class
        self._problem = record.request.problem
        self._planned = record.request.max_trials

    def trials(self) -> list[Trial]:
        """Trials of this job that were already committed, in the order in which they were.

        Raises:
            Unreadable: this release cannot read one of them, so that the job cannot go on here.
        """
        # NOTE: on a ladder by number alone, which no clock that is set back changes.
        order = () if self._ladder else (TrialRow.created,)
        query = select(TrialRow).where(TrialRow.job_id == self._job_id).order_by(*order, TrialRow.number)
        return self._read(lambda session: [_READER.one(row) for row in session.scalars(query)])

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Keep a trial, its artifact, its event and the progress it makes, together; nothing if the trial is
        kept already, because the answer to its commit was lost.

        Raises:
            JobTaken: the job is no longer this recorder's.
            sqlalchemy.exc.IntegrityError: the job has another trial of this number.
        """
        # NOTE: what can be made before the transaction is, since all other writers of SQLite wait for it.
        kernel = None if artifact is None else entities.prepared(artifact)
        values, event = {"job_id": self._job_id, **_values(trial, utc_now())}, _summary(trial)

        def add(session: Session, job: Held) -> None:
            if kernel is not None:
                entities.put_prepared(session, kernel)
            _keep_source(session, values["family"], values["source_digest"], values["created"])
            if not insert_new(session, TrialRow, values):
                if _is_kept(session, self._job_id, trial):
                    return
                insert_row(session, TrialRow, values)
            if trial.own_fault:
                self._quarantine(session, trial)
            progress = job.progress or JobProgress("search", measured=0, planned=self._planned)
            jobs.set_progress(session, self._job_id, _advanced(progress, trial))
            jobs.append_held(session, self._job_id, "trial", event)

        self._write(add, locks_results=bool(trial.own_fault))

    def why_quarantined(self, config: Config, today: Provenance) -> str | None:
        """Why a config is not to be tried: see :func:`tuner.store.faults.quarantine.why`."""
        return self._read(lambda session: quarantine.why(session, config, today))

    def quarantine(self, trial: Trial) -> None:
        """Quarantine the config of a trial that failed by its own fault when its kernel ran again.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """
        self._write(lambda session, _: self._quarantine(session, trial), locks_results=True)

    def _quarantine(self, session: Session, trial: Trial) -> None:
        m = trial.m or self._problem.m
        problem = dataclasses.replace(self._problem, m=m)
        device = trial.anchor.device if trial.anchor else self._device
        quarantine.put(session, trial, quarantine.Evidence(problem, self._job_id, device))

    def set_progress(self, progress: JobProgress) -> None:
        """Publish where the job stands.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """

        def publish(session: Session, _: Held) -> None:
            jobs.set_progress(session, self._job_id, progress)
            jobs.append_held(session, self._job_id, "progress", encode(progress))

        self._write(publish)

    def stored_best(self, problem: GemmProblem) -> BestConfig | None:
        """The winner that is stored for a problem of the job."""
        return self._read(lambda session: self._winner(session, problem))

    def _winner(self, session: Session, problem: GemmProblem) -> BestConfig | None:
        found = winners.exact(session, self._device_class, problem)
        return found[0].best if found else None

    def row_results(self) -> dict[int, BestConfig]:
        """What the races of this job on a ladder found, by M."""
        return self._read(lambda session: jobs.row_results(session, self._job_id))

    def row_errors(self) -> dict[int, str]:
        """Why rows of this job's ladder have no winner, by M."""
        return self._read(lambda session: jobs.row_errors(session, self._job_id))

    def set_row_error(self, m: int, error: str) -> None:
        """Keep why a row of this job's ladder has no winner.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """

        def keep(session: Session, _: Held) -> None:
            jobs.set_row_error(session, self._job_id, m, error)
            jobs.append_held(session, self._job_id, "row", {"m": m, "error": records.text(error[:500])})

        self._write(keep)

    def set_best(self, best: BestConfig, artifact: Artifact, raced: BestConfig | None = None) -> bool:
        """Keep the result of the final race with its kernel, as found by this job: see
        :func:`tuner.store.best.put`.

        Returns:
            False if another job stored a winner since ``raced`` was the stored one: it stays, and the result
            is kept with the job alone. A quick job races no stored winner.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """
        found = dataclasses.replace(best, job_id=self._job_id)

        def keep(session: Session, _: Held) -> bool:
            entities.put_artifact(session, artifact)
            (jobs.set_row_result if self._ladder else jobs.set_result)(session, self._job_id, found)
            stored = self._winner(session, best.problem)
            # NOTE: ``found`` is the stored one if the answer to its commit was lost.
            replaces = best.provenance.quick or stored in (None, raced, found)
            if replaces:
                winners.put(session, found)
            jobs.append_held(session, self._job_id, "best", _headline(best))
            return replaces

        return self._write(keep, locks_results=True)

    def _read(self, work: Callable[[Session], R]) -> R:
        def read() -> R:
            with self._store.read() as session:
                return work(session)

        return self._patience(read)

    def _write(self, work: Callable[[Session, Held], R], *, locks_results: bool = False) -> R:
        """What ``work`` gives, with the claim held, and with the lock on results if it ``locks_results``.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """

        def write() -> R:
            with self._store.begin() as session:
                if locks_results:
                    lock_results(session)
                return work(session, claims.hold(session, self._job_id, self._attempt))

        return self._patience(write)


def _advanced(progress: JobProgress, trial: Trial) -> JobProgress:
    if trial.timing is None:
        return dataclasses.replace(progress, failed=progress.failed + 1)
    progress = dataclasses.replace(progress, measured=progress.measured + 1)
    if trial.m != progress.m:
        progress = dataclasses.replace(progress, m=trial.m, best_us=None, best_config=None)
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
        **({} if trial.m is None else {"m": trial.m}),
        **({} if trial.anchor is None else {"device": trial.anchor.device}),
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
    } | ({} if winner.kernels is None else {"m": winner.problem.m, "regret": winner.regret})
