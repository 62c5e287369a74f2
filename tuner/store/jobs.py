"""Jobs: submitted or joined, claimed, finished, cancelled, taken up again."""

from __future__ import annotations

import dataclasses

from sqlalchemy import update
from sqlalchemy.orm import Session

from tuner.job import Progress
from tuner.store import codec
from tuner.store.errors import StoreError
from tuner.store.job_queries import get, known, listing, queued_count
from tuner.store.job_status import change, close
from tuner.store.leases import claim, hold, renew, requeue_interrupted, requeue_lost
from tuner.store.models import JobRow
from tuner.store.records import JobRecord, JobStatus
from tuner.store.submission import submit

__all__ = [
    "claim",
    "finish",
    "get",
    "hold",
    "known",
    "listing",
    "queued_count",
    "renew",
    "request_cancel",
    "requeue_interrupted",
    "requeue_lost",
    "set_progress",
    "submit",
]


def set_progress(session: Session, job_id: str, progress: Progress) -> None:
    """Keep where a job stands."""
    session.execute(update(JobRow).where(JobRow.id == job_id).values(progress=dataclasses.asdict(progress)))


def finish(session: Session, job_id: str, status: JobStatus, error: str | None = None) -> None:
    """Bring a job to a final status; the first one holds.

    Raises:
        StoreError: ``status`` is not final, or there is no such job.
    """
    if not status.is_final:
        raise StoreError(f"a job cannot finish as {status}; use succeeded, failed or cancelled")
    record = get(session, job_id, lock=True)
    if record is None:
        raise StoreError(f"there is no job {job_id}")
    if not record.status.is_final:
        close(session, job_id, status, codec.maybe(codec.text, error))


def request_cancel(session: Session, job_id: str) -> JobRecord | None:
    """Cancel a queued job, ask a running one to stop, leave a finished one; None for an unknown one."""
    record = get(session, job_id, lock=True)
    if record is None or record.cancel_requested:
        return record
    if record.status is JobStatus.QUEUED:
        close(session, job_id, JobStatus.CANCELLED, None, cancel_requested=True)
    elif record.status is JobStatus.RUNNING:
        change(session, job_id, JobStatus.RUNNING, active_key=None, cancel_requested=True)
    return get(session, job_id)
