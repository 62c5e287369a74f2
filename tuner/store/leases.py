"""Leases: whoever claimed a job holds it for a while, and for longer only by saying so.

The fencing token is the number of the claim (``attempt``): every write of a job's results locks the job
and compares it (:func:`hold`), so a holder that slept through the end of its lease changes nothing once
another has claimed the job.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from tuner.owner import is_gone
from tuner.store import clock
from tuner.store.errors import JobTaken
from tuner.store.job_queries import get
from tuner.store.job_status import change, close
from tuner.store.models import JobRow
from tuner.store.records import JobRecord, JobStatus, utc_now

LEASE_S = 30.0


def claim(session: Session, device_class: str, owner: str, lease_s: float = LEASE_S) -> JobRecord | None:
    """Turn the oldest queued job of a device class into a running one; None where none waits.

    Any number of claimers may ask at once: each job goes to one of them, for ``lease_s`` seconds.
    """
    waiting = select(JobRow.id).where(JobRow.device_class == device_class, JobRow.status == JobStatus.QUEUED)
    oldest = waiting.order_by(JobRow.id).limit(1).with_for_update(skip_locked=True)
    job_id = session.scalars(oldest).one_or_none()
    if job_id is None:
        return None
    values: dict[str, Any] = {"owner": owner, "attempt": JobRow.attempt + 1, "error": None}
    values |= {"started": utc_now(), "lease_until": clock.ahead(session, lease_s)}
    change(session, job_id, JobStatus.RUNNING, **values)
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


def renew(session: Session, job_id: str, attempt: int, lease_s: float = LEASE_S) -> JobRecord:
    """Hold a job for ``lease_s`` seconds from now.

    Raises:
        JobTaken: as :func:`hold`.
    """
    record = hold(session, job_id, attempt)
    until = {"lease_until": clock.ahead(session, lease_s)}
    session.execute(update(JobRow).where(JobRow.id == job_id).values(until))
    return record


def requeue_interrupted(session: Session, device_class: str, owner: str) -> list[str]:
    """Queue again what an owner claimed and does not work on any more; gives their ids, oldest first.

    Jobs that were asked to stop are cancelled instead.
    """
    return _requeue(session, device_class, JobRow.owner == owner)


def requeue_lost(session: Session, device_class: str) -> list[str]:
    """Queue again what nobody holds any more: its lease ended, or its holder was a process of this machine
    that is gone; gives their ids, oldest first.

    Jobs that were asked to stop are cancelled instead. Jobs of servers that live are left alone.
    """
    running = select(JobRow.owner).where(_running(device_class)).distinct()
    gone = [owner for owner in session.scalars(running) if owner and is_gone(owner)]
    ended = or_(JobRow.lease_until.is_(None), JobRow.lease_until < clock.ahead(session))
    return _requeue(session, device_class, or_(ended, JobRow.owner.in_(gone)))


def _requeue(session: Session, device_class: str, lost: ColumnElement[bool]) -> list[str]:
    query = select(JobRow.id, JobRow.cancel_requested).where(_running(device_class), lost)
    # NOTE: a job whose row is locked is being written by its holder: it is not lost.
    query = query.order_by(JobRow.id).with_for_update(skip_locked=True)
    requeued = []
    for job_id, cancelled in session.execute(query).all():
        if cancelled:
            close(session, job_id, JobStatus.CANCELLED, None, lease_until=None)
        else:
            change(session, job_id, JobStatus.QUEUED, lease_until=None)
            requeued.append(job_id)
    return requeued


def _running(device_class: str) -> ColumnElement[bool]:
    return (JobRow.device_class == device_class) & (JobRow.status == JobStatus.RUNNING)
