"""Jobs as they stand."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from tuner.job import Progress
from tuner.store import codec, devices, problems
from tuner.store.errors import StoreError
from tuner.store.models import JobRow
from tuner.store.records import JobRecord, JobStatus


def get(session: Session, job_id: str, lock: bool = False) -> JobRecord | None:
    """A job, None where there is none of this id; ``lock`` keeps others from changing it until the end."""
    query = select(JobRow).where(JobRow.id == job_id)
    query = query.with_for_update(of=JobRow) if lock else query
    row = session.scalars(_fresh(query)).one_or_none()
    return codec.maybe(_record, row)


def known(session: Session, job_id: str) -> JobRecord:
    """A job that is known to exist.

    Raises:
        StoreError: it does not.
    """
    record = get(session, job_id)
    if record is None:
        raise StoreError(f"there is no job {job_id}")
    return record


def listing(
    session: Session, status: JobStatus | None = None, limit: int = 50, before: str | None = None
) -> list[JobRecord]:
    """Jobs, the newest first; ``before`` is the id of the last one of the page before."""
    query = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
    query = query if status is None else query.where(JobRow.status == status)
    query = query if before is None else query.where(JobRow.id < before)
    return [_record(row) for row in session.scalars(_fresh(query))]


def queued_count(session: Session, device_class: str | None = None) -> int:
    """How many jobs wait, of a device class or of all."""
    query = select(func.count()).select_from(JobRow).where(JobRow.status == JobStatus.QUEUED)
    query = query if device_class is None else query.where(JobRow.device_class == device_class)
    return session.scalars(query).one()


def counts(session: Session) -> dict[JobStatus, int]:
    """How many jobs there are of each status that occurs."""
    rows = session.execute(select(JobRow.status, func.count()).group_by(JobRow.status)).all()
    return {status: number for status, number in rows}  # noqa: C416


def oldest_queued(session: Session) -> datetime | None:
    """When the job was submitted that has waited longest; None where none waits."""
    query = select(JobRow.created).where(JobRow.status == JobStatus.QUEUED)
    return session.scalars(query.order_by(JobRow.id).limit(1)).one_or_none()


def _fresh(query: Select[JobRow]) -> Select[JobRow]:
    # NOTE: rows are changed by UPDATE statements; without this the session would give its old copy.
    return query.execution_options(populate_existing=True)


def _record(row: JobRow) -> JobRecord:
    return JobRecord(
        id=row.id,
        request=codec.request(problems.parse(row.problem.canonical), row.options),
        device=devices.parse(row.device.spec),
        device_class=row.device_class,
        status=row.status,
        progress=codec.maybe(lambda data: Progress(**data), row.progress),
        error=row.error,
        cancel_requested=row.cancel_requested,
        owner=row.owner,
        attempt=row.attempt,
        created=row.created,
        started=row.started,
        finished=row.finished,
    )
