"""Jobs in the database: their events, submission, rows, cancellation and end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from tilewright.schema.codec import decode, encode, gathered
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, JobStatus, TuneRequest, work_of
from tilewright.schema.trial import BestConfig
from tuner.store import entities, imports, records
from tuner.store.access import audit, keys
from tuner.store.database import NEWS, StoreError, insert_new, insert_row
from tuner.store.models import (
    ApiKeyRow,
    EventRow,
    JobRow,
    LadderRow,
    ProblemRow,
    SubmissionRow,
    TrialSlotRow,
)
from tuner.store.records import EventRecord, JobRecord, RowReader, Unreadable, utc_now

# NOTE: those of each trial are built once: building one costs more than SQLite takes to run it.
_LOCK = select(JobRow.id).where(JobRow.id == bindparam("job_id")).with_for_update()
_SET_PROGRESS = update(JobRow.__table__).where(JobRow.id == bindparam("job_id"))  # type: ignore[arg-type]
_SET_PROGRESS = _SET_PROGRESS.values(progress=bindparam("progress"))


def append_event(session: Session, job_id: str, kind: str, data: dict[str, Any]) -> int:
    """Add an event to a job's log; gives its id."""
    # NOTE: holding the job's row makes ids visible in order; a reader that went on from id 8 would
    # otherwise never see a 7 that is committed later.
    session.execute(_LOCK, {"job_id": job_id})
    return append_held(session, job_id, kind, data)


def append_held(session: Session, job_id: str, kind: str, data: dict[str, Any]) -> int:
    """As :func:`append_event`, for a job that this transaction has locked."""
    values = {"job_id": job_id, "kind": kind, "data": data, "created": utc_now()}
    event_id: int = insert_row(session, EventRow, values)
    session.info.setdefault(NEWS, set()).add(job_id)
    return event_id


def events_after(session: Session, job_id: str, last_id: int = 0, limit: int = 500) -> list[EventRecord]:
    """Events of a job that follow ``last_id``, oldest first."""
    query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > last_id)
    rows = session.scalars(query.order_by(EventRow.id).limit(limit))
    return [EventRecord(**gathered(EventRecord, row)) for row in rows]


def newest_events(session: Session, ids: Sequence[str]) -> dict[str, int]:
    """The id of the last event of each of these jobs that has one."""
    query = select(EventRow.job_id, func.max(EventRow.id)).where(EventRow.job_id.in_(ids))
    return dict(session.execute(query.group_by(EventRow.job_id)).all())


def statuses(session: Session, ids: Sequence[str]) -> dict[str, JobStatus]:
    """The status of each of these jobs that there is."""
    query = select(JobRow.id, JobRow.status).where(JobRow.id.in_(ids))
    return dict(session.execute(query).all())


def change_status(session: Session, job_id: str, status: JobStatus, **values: Any) -> None:
    """Set a job's status and further columns."""
    session.execute(update(JobRow).where(JobRow.id == job_id).values(status=status, **values))
    data = {"status": status, "cancel_requested": bool(values.get("cancel_requested"))}
    append_event(session, job_id, "status", data | {"error": values.get("error")})


def close_job(session: Session, job_id: str, status: JobStatus, error: str | None, **values: Any) -> None:
    """End a job, so that no request joins it."""
    session.execute(delete(TrialSlotRow).where(TrialSlotRow.job_id == job_id))
    change_status(session, job_id, status, active_key=None, finished=utc_now(), error=error, **values)


def get(session: Session, job_id: str, lock: bool = False) -> JobRecord | None:
    """A job, None if there is none of this id; ``lock`` keeps others from changing it until the end.

    Raises:
        Unreadable: this release cannot read it.
    """
    query = select(JobRow).where(JobRow.id == job_id, imports.has_entered())
    query = query.with_for_update(of=JobRow) if lock else query
    row = session.scalars(_fresh(query)).one_or_none()
    return None if row is None else _READER.one(row)


def known(session: Session, job_id: str) -> JobRecord:
    """A job that is known to exist.

    Raises:
        StoreError: it does not.
    """
    record = get(session, job_id)
    if record is None:
        raise StoreError(f"there is no job {job_id}; 'tilewright jobs ls' lists those there are")
    return record


def listing(
    session: Session,
    status: JobStatus | None = None,
    limit: int = 50,
    before: str | None = None,
    prefix: str = "",
    m: int | None = None,
) -> list[JobRecord | Unreadable]:
    """Jobs whose ids begin with ``prefix``, the newest first, also those that this release cannot read;
    ``before`` is the id of the last one of the page before, ``m`` that of its problem or of a row of its
    ladder."""
    query = select(JobRow).where(imports.has_entered()).order_by(JobRow.id.desc()).limit(limit)
    query = query.where(JobRow.id >= prefix, JobRow.id < f"{prefix}g") if prefix else query
    query = query if status is None else query.where(JobRow.status == status)
    query = query if before is None else query.where(JobRow.id < before)
    query = query if m is None else query.where(_tunes(m))
    return [_READER.tried(row) for row in session.execute(_fresh(query))]


def _tunes(m: int) -> ColumnElement[bool]:
    """Whether a job tunes a problem with an M, of a ladder on any of its rows."""
    problem = aliased(ProblemRow)
    alone = exists().where(problem.id == JobRow.problem_id, problem.m == m)
    return or_(alone, exists().where(LadderRow.job_id == JobRow.id, LadderRow.m == m))


def queued_count(session: Session, device_class: str | None = None) -> int:
    """How many jobs wait, of a device class or of all."""
    query = select(func.count()).select_from(JobRow).where(JobRow.status == JobStatus.QUEUED)
    query = query if device_class is None else query.where(JobRow.device_class == device_class)
    return session.scalars(query).one()


def queued_work(session: Session, caller: str | None = None) -> int:
    """How much waits, in jobs on one problem (:attr:`TuneRequest.work`), of a caller or of all."""
    waiting = JobRow.status == JobStatus.QUEUED
    return _work(session, waiting if caller is None else waiting & (JobRow.caller == caller))


def withdrawn_work(session: Session, caller: str, since: datetime) -> int:
    """How much a caller submitted and cancelled before it began, since a time, in jobs on one problem; what
    others cancelled does not count."""
    never = (JobRow.status == JobStatus.CANCELLED) & JobRow.started.is_(None)
    return _work(
        session, never & (JobRow.caller == caller) & JobRow.id.in_(audit.cancelled_by(caller, since))
    )


def _work(session: Session, which: ColumnElement[bool]) -> int:
    rows = select(func.count(LadderRow.m)).select_from(JobRow).outerjoin(LadderRow).where(which)
    return sum(work_of(max(1, one)) for one in session.scalars(rows.group_by(JobRow.id)))


def counts(session: Session) -> dict[JobStatus, int]:
    """How many jobs there are of each status that occurs."""
    query = select(JobRow.status, func.count()).where(imports.has_entered()).group_by(JobRow.status)
    rows = session.execute(query).all()
    return {status: number for status, number in rows}  # noqa: C416


def oldest_queued(session: Session) -> datetime | None:
    """The submission time of the job that has waited longest; None if none waits."""
    query = select(JobRow.created).where(JobRow.status == JobStatus.QUEUED)
    return session.scalars(query.order_by(JobRow.id).limit(1)).one_or_none()


def _fresh(query: Select[JobRow]) -> Select[JobRow]:
    # NOTE: rows are changed by UPDATE statements; without this the session would give its old copy.
    return query.execution_options(populate_existing=True)


def _record(row: JobRow) -> JobRecord:
    request = TuneRequest.of(entities.parse_problem(row.problem.canonical), row.options)
    progress = None if row.progress is None else decode(JobProgress, row.progress)
    result = None if row.result is None else decode(BestConfig, row.result)
    device, status = entities.parse_device(row.device.spec), JobStatus(row.status)
    given = {"request": request, "device": device, "status": status, "progress": progress, "result": result}
    return JobRecord(**gathered(JobRecord, row, **given))


_READER = RowReader("job", lambda row: row.id, _record)


def submit(
    session: Session, request: TuneRequest, device: DeviceSpec, caller: str | None = None
) -> tuple[JobRecord, bool]:
    """Queue a request of a caller, None for the service itself, for a device's class; gives the job and
    whether it is a new one.

    A job that is queued or running with the same request and device class is joined, unless it was
    asked to stop.
    """
    digest = records.request_digest(request, device.device_class.id)
    job_id = _new_id()
    joined = _create_or_join(session, request, device, digest, {"id": job_id, "caller": caller})
    if joined is None:
        add_rows(session, job_id, request)
        append_event(session, job_id, "status", {"status": JobStatus.QUEUED})
    return known(session, joined or job_id), joined is None


def hand_over(session: Session, job: JobRecord, caller: str, most: int) -> str | None:
    """Give a job to a caller of higher priority that joined it while it waits: it goes before the jobs of
    lower priority, and counts for that caller; gives whose it was, as the audit log names them. None where it
    stays with its caller, as where the other has no room for it: as many jobs as its key says, else
    ``most``."""
    priorities = keys.priorities(session)

    def is_lower(owner: str | None) -> bool:
        return priorities.get(owner or "", 0) < priorities.get(caller, 0)

    # NOTE: without a lock first, as a job that is locked cannot be claimed meanwhile.
    if not is_lower(session.scalar(select(JobRow.caller).where(JobRow.id == job.id))):
        return None
    # NOTE: locked, so that of two who take it over at the same time one takes it from the other.
    held = select(JobRow.caller, exists().where(ApiKeyRow.id == JobRow.caller).label("by_key"))
    held = held.where(JobRow.id == job.id, JobRow.status == JobStatus.QUEUED).with_for_update(of=JobRow)
    former = session.execute(held).one_or_none()
    if former is None or not is_lower(former.caller):
        return None
    own = keys.max_queued(session, caller)
    if queued_work(session, caller) + job.request.work > (most if own is None else own):
        return None
    moved = update(JobRow).where(JobRow.id == job.id).values(caller=caller)
    session.execute(moved, execution_options={"synchronize_session": False})
    return audit.SERVICE if former.caller is None else audit.who_is(former.caller, by_key=former.by_key)


def was_started(session: Session, key: str) -> bool:
    """Whether a request with an idempotency key was answered."""
    fresh = (SubmissionRow.key == key) & (SubmissionRow.created >= utc_now() - keys.KEY_LIFE)
    return session.scalar(select(SubmissionRow.key).where(fresh)) is not None


def add_rows(session: Session, job_id: str, request: TuneRequest) -> None:
    """Keep the rows of a new job on a ladder."""
    for problem in request.problems if request.ladder else ():
        row = {"job_id": job_id, "m": problem.m, "problem_id": entities.ensure_problem(session, problem)}
        insert_row(session, LadderRow, row)


def row_results(session: Session, job_id: str) -> dict[int, BestConfig]:
    """What the races of a job on a ladder found, by M; rows without a result are left out."""
    decided = (LadderRow.job_id == job_id) & LadderRow.result.is_not(None)
    rows = session.execute(select(LadderRow).where(decided).order_by(LadderRow.m))
    return {best.problem.m: best for best in _ROW_READER.readable(rows)}


def row_errors(session: Session, job_id: str) -> dict[int, str]:
    """Why rows of a job on a ladder have no winner, by M."""
    failed = (LadderRow.job_id == job_id) & LadderRow.error.is_not(None)
    query = select(LadderRow.m, LadderRow.error).where(failed).order_by(LadderRow.m)
    return {m: str(error) for m, error in session.execute(query)}


def set_row_result(session: Session, job_id: str, result: BestConfig) -> None:
    """Keep what the race of one row of a ladder found.

    Raises:
        StoreError: the ladder has no such row.
    """
    _decide(session, job_id, result.problem.m, {"result": encode(result), "error": None})


def set_row_error(session: Session, job_id: str, m: int, error: str) -> None:
    """Keep why one row of a ladder has no winner.

    Raises:
        StoreError: the ladder has no such row.
    """
    _decide(session, job_id, m, {"error": records.text(error)})


def _decide(session: Session, job_id: str, m: int, values: dict[str, Any]) -> None:
    row = session.get(LadderRow, (job_id, m))
    if row is None:
        raise StoreError(f"job {job_id} has no row for m = {m}; use an M of its ladder")
    for name, value in values.items():
        setattr(row, name, value)


_ROW_READER = RowReader(
    "ladder_row", lambda row: f"m = {row.m} of job {row.job_id}", lambda row: decode(BestConfig, row.result)
)


def _create_or_join(
    session: Session, request: TuneRequest, device: DeviceSpec, digest: str, own: dict[str, Any]
) -> str | None:
    live = select(JobRow.id).where(JobRow.active_key == digest)
    joined = session.scalar(live)
    values = _values(session, request, device, digest) if joined is None else {}
    # NOTE: the job that an insert ran into may have ended before it could be read: then try again.
    while joined is None and not insert_new(session, JobRow, own | values):
        joined = session.scalar(live)
    return joined


def _values(session: Session, request: TuneRequest, device: DeviceSpec, digest: str) -> dict[str, Any]:
    problem_ids = entities.ensure_problems(session, request.problems)
    return {
        "problem_id": problem_ids[request.problem],
        "device_id": entities.see_device(session, device),
        "device_class": device.device_class.id,
        "options": request.options,
        "active_key": digest,
        "status": JobStatus.QUEUED,
        "attempt": 0,
        "cancel_requested": False,
        "created": utc_now(),
    }


def _new_id() -> str:
    """Nanoseconds since 1970, then 64 random bits, in hex: sorts by time of submission."""
    since = max(0, time.time_ns())  # a clock may stand before 1970
    return f"{since:016x}{secrets.token_hex(8)}"


def set_progress(session: Session, job_id: str, progress: JobProgress) -> None:
    """Keep where a job stands."""
    session.execute(_SET_PROGRESS, {"job_id": job_id, "progress": encode(progress)})


def set_result(session: Session, job_id: str, result: BestConfig) -> None:
    """Keep what a job's final race found."""
    session.execute(update(JobRow).where(JobRow.id == job_id).values(result=encode(result)))


def finish(session: Session, job_id: str, status: JobStatus, error: str | None = None) -> None:
    """Bring a job to a final status; the first one holds.

    Raises:
        StoreError: ``status`` is not final, or there is no such job.
    """
    if not status.final:
        raise StoreError(f"a job cannot finish as {status}; use succeeded, failed or cancelled")
    record = get(session, job_id, lock=True)
    if record is None:
        raise StoreError(f"there is no job {job_id}; 'tilewright jobs ls' lists those there are")
    if not record.status.final:
        close_job(session, job_id, status, None if error is None else records.text(error))


def to_cancel(
    session: Session, caller: str | None = None, status: JobStatus | None = None, **alike: Any
) -> list[str]:
    """The jobs that have not ended and were not asked to stop, of a caller or of all, of a status or of any;
    ``alike`` has the values that columns of their problems must have, ``m`` that of any row of a ladder."""
    live = JobRow.status.in_([one for one in JobStatus if not one.final])
    query = select(JobRow.id).join(ProblemRow).where(live, JobRow.cancel_requested.is_(False))
    query = query if caller is None else query.where(JobRow.caller == caller)
    query = query if status is None else query.where(JobRow.status == status)
    query = query if (m := alike.pop("m", None)) is None else query.where(_tunes(m))
    query = query.where(*(getattr(ProblemRow, name) == value for name, value in alike.items()))
    # NOTE: the newest first, so that no device takes up one of them meanwhile.
    return list(session.scalars(query.order_by(JobRow.id.desc())))


def request_cancel(session: Session, job_id: str) -> bool | None:
    """Cancel a queued job, ask a running one to stop, leave a finished one; gives whether that changed
    something, None for an unknown job.

    The job need not be readable.
    """
    query = select(JobRow.status, JobRow.cancel_requested).where(JobRow.id == job_id)
    found = session.execute(query.with_for_update()).one_or_none()
    if found is None:
        return None
    if found.cancel_requested or found.status not in (JobStatus.QUEUED, JobStatus.RUNNING):
        return False
    if found.status is JobStatus.QUEUED:
        close_job(session, job_id, JobStatus.CANCELLED, None, cancel_requested=True)
    else:
        change_status(session, job_id, JobStatus.RUNNING, active_key=None, cancel_requested=True)
    return True
