"""``JobRecorder``: where a running job reports to, backed by the store."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilewright.artifact import Artifact
from tilewright.trial import BestConfig, Outcome, Trial
from tuner.job import Progress
from tuner.store import artifacts, codec, events, jobs, trials
from tuner.store import best as winners
from tuner.store.database import Store
from tuner.store.errors import JobTaken
from tuner.store.records import JobRecord


class JobRecorder:
    """The :class:`tuner.job.Recorder` of a claimed job; each call is one transaction.

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
            return trials.of_job(session, self._job_id)

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Keep a trial, its artifact, its event and the progress it makes, together.

        Raises:
            JobTaken: the job is no longer this recorder's.
            sqlalchemy.exc.IntegrityError: the job has a trial of this number.
        """
        with self._store.begin() as session:
            job = jobs.hold(session, self._job_id, self._attempt)
            if artifact is not None:
                artifacts.put(session, artifact)
            trials.add(session, self._job_id, trial)
            jobs.set_progress(session, self._job_id, _advanced(job, trial))
            events.append(session, self._job_id, "trial", _summary(trial))

    def set_progress(self, progress: Progress) -> None:
        """Publish where the job stands.

        Raises:
            JobTaken: the job is no longer this recorder's.
        """
        with self._store.begin() as session:
            jobs.hold(session, self._job_id, self._attempt)
            jobs.set_progress(session, self._job_id, progress)
            events.append(session, self._job_id, "progress", dataclasses.asdict(progress))

    def set_best(self, best: BestConfig) -> None:
        """Keep the winner of the final race, as found by this job.

        Raises:
            JobTaken: the job is no longer this recorder's.
            StoreError: the winner's artifact is not kept.
        """
        with self._store.begin() as session:
            jobs.hold(session, self._job_id, self._attempt)
            winners.put(session, dataclasses.replace(best, job_id=self._job_id), self._is_current)
            events.append(session, self._job_id, "best", _headline(best))


def _advanced(job: JobRecord, trial: Trial) -> Progress:
    progress = job.progress or Progress("search", measured=0, planned=job.request.max_trials)
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
        "message": codec.text(trial.message[:500]),
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
