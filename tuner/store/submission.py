"""How a request becomes a job: a new one, or one that already does the same work."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tilewright.device import DeviceSpec
from tuner.job import TuneRequest
from tuner.store import codec, devices, events, job_queries, problems
from tuner.store.errors import IdempotencyConflict, StoreError
from tuner.store.models import JobRow, SubmissionRow
from tuner.store.records import JobRecord, JobStatus, utc_now
from tuner.store.upsert import insert_new

KEY_LIFE = timedelta(hours=24)


def submit(
    session: Session, request: TuneRequest, device: DeviceSpec, idempotency_key: str | None = None
) -> tuple[JobRecord, bool]:
    """Queue a request for a device's class; gives the job and whether it is a new one.

    A job that is queued or running with the same request and device class is joined, unless it was
    asked to stop. A request with the idempotency key of one in the last 24 hours gets that one's job,
    also after its end.

    Raises:
        IdempotencyConflict: the key came with another request before.
    """
    digest = codec.request_digest(request, device.device_class.id)
    job_id = _new_id()
    if idempotency_key is not None and not _take(session, idempotency_key, digest, job_id):
        return _earlier(session, idempotency_key, digest), False
    joined = _create_or_join(session, request, device, digest, job_id)
    if joined is None:
        events.append(session, job_id, "status", {"status": JobStatus.QUEUED})
        return _existing(session, job_id), True
    if idempotency_key is not None:
        moved = update(SubmissionRow).where(SubmissionRow.key == idempotency_key).values(job_id=joined)
        session.execute(moved)
    return _existing(session, joined), False


def _create_or_join(
    session: Session, request: TuneRequest, device: DeviceSpec, digest: str, job_id: str
) -> str | None:
    live = select(JobRow.id).where(JobRow.active_key == digest)
    joined = session.scalar(live)
    values = _values(session, request, device, digest) if joined is None else {}
    # NOTE: the job that an insert ran into may have ended before it could be read: then try again.
    while joined is None and not insert_new(session, JobRow, {"id": job_id, **values}):
        joined = session.scalar(live)
    return joined


def _values(session: Session, request: TuneRequest, device: DeviceSpec, digest: str) -> dict[str, Any]:
    return {
        "problem_id": problems.ensure(session, request.problem),
        "device_id": devices.seen(session, device),
        "device_class": device.device_class.id,
        "options": codec.options(request),
        "active_key": digest,
        "status": JobStatus.QUEUED,
        "attempt": 0,
        "cancel_requested": False,
        "created": utc_now(),
    }


def _take(session: Session, key: str, digest: str, job_id: str) -> bool:
    now = utc_now()
    session.execute(delete(SubmissionRow).where(SubmissionRow.created < now - KEY_LIFE))
    values = {"key": key, "request_digest": digest, "job_id": job_id, "created": now}
    return insert_new(session, SubmissionRow, values)


def _earlier(session: Session, key: str, digest: str) -> JobRecord:
    query = select(SubmissionRow.request_digest, SubmissionRow.job_id).where(SubmissionRow.key == key)
    request_digest, job_id = session.execute(query).one()
    if request_digest != digest:
        raise IdempotencyConflict(
            "this idempotency key was used for another request; repeat that request or use a new key"
        )
    return _existing(session, job_id)


def _existing(session: Session, job_id: str) -> JobRecord:
    record = job_queries.get(session, job_id)
    if record is None:
        raise StoreError(f"there is no job {job_id}")
    return record


def _new_id() -> str:
    """Nanoseconds since 1970, then 64 random bits, in hex: sorts by time of submission."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"
