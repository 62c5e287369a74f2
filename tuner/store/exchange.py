"""Results of other stores: what leaves this one, and how it enters another.

Ids of jobs are unique over all stores and a job that has ended never changes, so merging is the union of
jobs and of their trials, and merging twice changes nothing.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.device import DeviceSpec
from tuner.job import TuneRequest
from tuner.store import codec, job_queries, problems
from tuner.store.models import DeviceRow, JobRow
from tuner.store.records import JobRecord, JobStatus
from tuner.store.upsert import insert_new

FINAL = tuple(status for status in JobStatus if status.is_final)


@dataclasses.dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that another store saw end; times are aware UTC."""

    id: str
    request: TuneRequest
    device: DeviceSpec
    status: JobStatus
    error: str | None
    created: datetime
    started: datetime | None
    finished: datetime


def ended_jobs(
    session: Session, device_class: str | None, since: datetime | None, limit: int, after: str = ""
) -> list[JobRecord]:
    """Jobs of a device class or of all that ended, ``since`` then, by id from the one after ``after``."""
    query = select(JobRow.id).where(JobRow.status.in_(FINAL), JobRow.id > after)
    query = query if device_class is None else query.where(JobRow.device_class == device_class)
    query = query if since is None else query.where(JobRow.finished >= since)
    ids = session.scalars(query.order_by(JobRow.id).limit(limit)).all()
    return [job for job_id in ids if (job := job_queries.get(session, job_id))]


def merge_job(session: Session, job: EndedJob) -> bool:
    """Keep a job; False where it is here already."""
    if has_job(session, job.id):
        return False
    values = {
        "id": job.id,
        "problem_id": problems.ensure(session, job.request.problem),
        "device_id": _device(session, job.device, job.created),
        "device_class": job.device.device_class.id,
        "options": codec.options(job.request),
        "status": job.status,
        "error": codec.maybe(codec.text, job.error),
        "attempt": 1,
        "cancel_requested": False,
        "created": job.created,
        "started": job.started,
        "finished": job.finished,
    }
    return insert_new(session, JobRow, values)


def has_job(session: Session, job_id: str) -> bool:
    """Whether a job is here."""
    return session.scalar(select(JobRow.id).where(JobRow.id == job_id)) is not None


def _device(session: Session, spec: DeviceSpec, seen: datetime) -> int:
    text = codec.canonical(spec.to_dict())
    values = {"spec": text, "device_class": spec.device_class.id, "arch": spec.arch}
    insert_new(session, DeviceRow, {**values, "first_seen": seen, "last_seen": seen})
    return session.scalars(select(DeviceRow.id).where(DeviceRow.spec == text)).one()
