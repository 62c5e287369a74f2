"""How a request becomes a job: a new one, or one that already does the same work."""

from __future__ import annotations

import secrets
import time
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.device import DeviceSpec
from tuner.job import TuneRequest
from tuner.store import codec, devices, events, job_queries, problems
from tuner.store.models import JobRow
from tuner.store.records import JobRecord, JobStatus, utc_now
from tuner.store.upsert import insert_new


def submit(session: Session, request: TuneRequest, device: DeviceSpec) -> tuple[JobRecord, bool]:
    """Queue a request for a device's class; gives the job and whether it is a new one.

    A job that is queued or running with the same request and device class is joined, unless it was
    asked to stop.
    """
    digest = codec.request_digest(request, device.device_class.id)
    job_id = _new_id()
    joined = _create_or_join(session, request, device, digest, job_id)
    if joined is None:
        events.append(session, job_id, "status", {"status": JobStatus.QUEUED})
    return job_queries.known(session, joined or job_id), joined is None


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


def _new_id() -> str:
    """Nanoseconds since 1970, then 64 random bits, in hex: sorts by time of submission."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"
