"""Jobs: submitted or joined, claimed, finished, cancelled, taken up again.

Every change of status appends a ``status`` event in the same transaction.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tuner.job import Progress
from tuner.store import codec, events
from tuner.store.errors import JobTaken, StoreError
from tuner.store.job_queries import get, listing, queued_count
from tuner.store.models import JobRow
from tuner.store.records import JobRecord, JobStatus, utc_now
from tuner.store.submission import submit

__all__ = [
    "claim",
    "finish",
    "get",
    "hold",
    "listing",
    "queued_count",
    "request_cancel",
    "requeue_interrupted",
    "set_progress",
    "submit",
]


def claim(session: Session, device_class: str, owner: str) -> JobRecord | None:
    """Turn the oldest queued job of a device class into a running one; None where none waits.

    Any number of claimers may ask at once: each job goes to one of them.
    """
    waiting = select(JobRow.id).where(JobRow.device_class == device_class, JobRow.status == JobStatus.QUEUED)
    oldest = waiting.order_by(JobRow.id).limit(1).with_for_update(skip_locked=True)
    job_id = session.scalars(oldest).one_or_none()
    if job_id is None:
        return None
    _change(
        session,
        job_id,
        JobStatus.RUNNING,
        owner=owner,
        attempt=JobRow.attempt + 1,
        started=utc_now(),
        error=None,
    )
    return get(session, job_id)


def hold(session: Session, job_id: str, attempt: int) -> JobRecord:
    """Lock a running job for this transaction, on behalf of whoever claimed it the ``attempt``-th time.

    Raises:
        JobTaken: the job is not running or was claimed again since.
    """
    record = get(session, job_id, lock=True)
    if record is None or record.status is not JobStatus.RUNNING or record.attempt != attempt:
        raise JobTaken(f"job {job_id} is not running under claim {attempt}; stop, another may work on it")
    return record


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
        _close(session, job_id, status, codec.maybe(codec.text, error))


def request_cancel(session: Session, job_id: str) -> JobRecord | None:
    """Cancel a queued job, ask a running one to stop, leave a finished one; None for an unknown one."""
    record = get(session, job_id, lock=True)
    if record is None or record.cancel_requested:
        return record
    if record.status is JobStatus.QUEUED:
        _close(session, job_id, JobStatus.CANCELLED, None, cancel_requested=True)
    elif record.status is JobStatus.RUNNING:
        _change(session, job_id, JobStatus.RUNNING, active_key=None, cancel_requested=True)
    return get(session, job_id)


def requeue_interrupted(session: Session, device_class: str, owner: str | None = None) -> list[str]:
    """Queue again what ran on a device class when its server died; gives their ids, oldest first.

    For the start of a server, before it claims. Servers that share a database and a device class
    each pass the ``owner`` under which they claim, so as not to touch each other's. Jobs that were
    asked to stop are cancelled instead.
    """
    query = select(JobRow.id, JobRow.cancel_requested).order_by(JobRow.id).with_for_update()
    query = query.where(JobRow.device_class == device_class, JobRow.status == JobStatus.RUNNING)
    query = query if owner is None else query.where(JobRow.owner == owner)
    requeued = []
    for job_id, cancelled in session.execute(query).all():
        if cancelled:
            _close(session, job_id, JobStatus.CANCELLED, None)
        else:
            _change(session, job_id, JobStatus.QUEUED)
            requeued.append(job_id)
    return requeued


def _close(session: Session, job_id: str, status: JobStatus, error: str | None, **values: Any) -> None:
    _change(session, job_id, status, active_key=None, finished=utc_now(), error=error, **values)


def _change(session: Session, job_id: str, status: JobStatus, **values: Any) -> None:
    session.execute(update(JobRow).where(JobRow.id == job_id).values(status=status, **values))
    data = {"status": status, "cancel_requested": bool(values.get("cancel_requested"))}
    events.append(session, job_id, "status", data | {"error": values.get("error")})
