"""Changes of a job's status; each appends a ``status`` event in the same transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from tuner.store import events
from tuner.store.models import JobRow
from tuner.store.records import JobStatus, utc_now


def change(session: Session, job_id: str, status: JobStatus, **values: Any) -> None:
    """Set a job's status and further columns."""
    session.execute(update(JobRow).where(JobRow.id == job_id).values(status=status, **values))
    data = {"status": status, "cancel_requested": bool(values.get("cancel_requested"))}
    events.append(session, job_id, "status", data | {"error": values.get("error")})


def close(session: Session, job_id: str, status: JobStatus, error: str | None, **values: Any) -> None:
    """Bring a job to its end: nobody joins it any more."""
    change(session, job_id, status, active_key=None, finished=utc_now(), error=error, **values)
