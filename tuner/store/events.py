"""The event log: what happened to a job, in the order in which it was committed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tuner.store.models import EventRow, JobRow
from tuner.store.records import EventRecord, utc_now
from tuner.store.upsert import insert_row


def append(session: Session, job_id: str, kind: str, data: dict[str, Any]) -> int:
    """Add an event to a job's log; gives its id."""
    # NOTE: holding the job's row makes ids visible in order; a reader that went on from id 8 would
    # otherwise never see a 7 that is committed later.
    session.execute(select(JobRow.id).where(JobRow.id == job_id).with_for_update())
    values = {"job_id": job_id, "kind": kind, "data": data, "created": utc_now()}
    event_id: int = insert_row(session, EventRow, values)
    return event_id


def after(session: Session, job_id: str, last_id: int = 0, limit: int = 500) -> list[EventRecord]:
    """Events of a job that follow ``last_id``, oldest first."""
    query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > last_id)
    rows = session.scalars(query.order_by(EventRow.id).limit(limit))
    return [EventRecord(row.id, row.job_id, row.kind, row.data, row.created) for row in rows]
