"""Jobs in the database: their events, submission, claims with leases, cancellation and end."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from tilewright import __version__
from tilewright.schema.codec import decode, encode, gathered
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, JobStatus, TuneRequest, work_of
from tilewright.schema.trial import BestConfig
from tuner.store import database, entities, imports, records
from tuner.store.access import keys
from tuner.store.database import NEWS, JobTaken, StoreError, insert_new, insert_row
from tuner.store.models import EventRow, JobRow, LadderRow, ProblemRow, TrialSlotRow
from tuner.store.records import EventRecord, JobRecord, RowReader, Unreadable, utc_now

# NOTE: those of each trial are built once: building one costs more than SQLite takes to run it.
_LOCK = select(JobRow.id).where(JobRow.id == bindparam("job_id")).with_for_update()
_HOLD = (
    select(JobRow.status, JobRow.attempt, JobRow.cancel_requested, JobRow.progress)
    .where(JobRow.id == bindparam("job_id"))
    .with_for_update()
)
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
    return [EventRecord(row.id, row.job_id, row.kind, row.data, row.created) for row in rows]


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
    """How much of a caller was cancelled before it began, since a time, in jobs on one problem."""
    never = (JobRow.status == JobStatus.CANCELLED) & JobRow.started.is_(None)
    return _work(session, never & (JobRow.caller == caller) & (JobRow.finished >= since))


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
    return {
        "problem_id": entities.ensure_problem(session, request.problem),
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
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


_PROC = Path("/proc")


def new_owner() -> str:
    """A fresh name for something in this process that claims jobs.

    It holds the machine's boot, the namespace of process ids, this process's id and start, a random part and
    this release.
    """
    return f"{_place()}/{os.getpid()}/{_start_of(os.getpid())}/{secrets.token_hex(4)}@{__version__}"


def release_of(owner: str) -> str:
    """The release behind an owner's name; empty for one that does not tell."""
    return owner.rpartition("/")[2].partition("@")[2]


def is_gone(owner: str) -> bool:
    """Whether the process behind an owner certainly ended.

    False if that cannot be told from here (another machine, another container, an unknown name): then
    only the end of its lease tells.
    """
    parts = owner.rsplit("/", 3)
    if len(parts) != 4 or parts[0] != _place() or not parts[1].isdecimal():
        return False
    start = _start_of(int(parts[1]))
    return start is not None and start != parts[2]


def _place() -> str:
    boot = _PROC / "sys/kernel/random/boot_id"
    namespace = _PROC / "self/ns/pid"
    # NOTE: two containers of one host share the boot and may both run process 1.
    return f"{boot.read_text().strip()}/{os.readlink(namespace)}"


def _start_of(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; empty if it ended or waits to be reaped, None if it
    lives but is hidden from this user (``/proc`` mounted with ``hidepid``)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None if _lives(pid) else ""
    # NOTE: the second field is the program's name, which may hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What the holder of a claim learns about its job."""

    cancel_requested: bool
    progress: JobProgress | None


_FAIR_OVER = timedelta(hours=1)
_ALIKE_S = 10.0  # callers whose device seconds differ by less have their turns one after the other
LEASE_S = 30.0
_LONGEST_LEASE_S = 2 * 3600.0  # twice what the settings allow
_BOOT = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def claim(session: Session, device_class: str, owner: str, lease_s: float = LEASE_S) -> JobRecord | None:
    """Turn a queued job of a device class into a running one; None if none waits.

    It is the oldest job of the caller whose turn it is. Callers are ordered by priority, highest first; then
    by the seconds that their jobs used devices of the class since the oldest waiting job was submitted,
    within the last hour at most, in steps of 10 s, fewest first; then by the start of their last job, longest
    ago first.

    Any number of claimers may ask at once: each job goes to one of them, for ``lease_s`` seconds. Jobs that
    this release cannot read are left to a server that can.
    """
    waiting = (JobRow.device_class == device_class) & (JobRow.status == JobStatus.QUEUED)
    in_turn = (
        _oldest_readable(session, waiting & caller) for caller in _in_turn(session, device_class, waiting)
    )
    job_id = next(filter(None, in_turn), None)
    if job_id is None:
        return None
    values: dict[str, Any] = {"owner": owner, "attempt": JobRow.attempt + 1, "error": None}
    values |= {"started": utc_now(), "lease_until": database.ahead(session, lease_s), "lease_s": lease_s}
    change_status(session, job_id, JobStatus.RUNNING, **values)
    return get(session, job_id)


def _in_turn(session: Session, device_class: str, waiting: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    """The callers of waiting jobs, as conditions, in the order in which they have their turns."""
    query = select(JobRow.caller, func.min(JobRow.id)).where(waiting).group_by(JobRow.caller)
    oldest = {caller: job_id for caller, job_id in session.execute(query)}  # noqa: C416
    mine = {
        caller: JobRow.caller == caller if caller is not None else JobRow.caller.is_(None)
        for caller in oldest
    }
    if len(oldest) < 2:
        return list(mine.values())
    priorities, never = keys.priorities(session), datetime.min.replace(tzinfo=UTC)
    since = session.scalar(select(func.min(JobRow.created)).where(waiting))
    spent_s = _device_seconds(session, device_class, since or utc_now())

    def turn(caller: str | None) -> tuple[int, int, datetime, str]:
        last = session.scalar(select(func.max(JobRow.started)).where(mine[caller]))
        spent = int(spent_s[caller] / _ALIKE_S)
        return -priorities.get(caller or "", 0), spent, last or never, oldest[caller]

    return [mine[caller] for caller in sorted(oldest, key=turn)]


def _device_seconds(session: Session, device_class: str, waits: datetime) -> Counter[str | None]:
    """Seconds for which jobs of each caller used a device of a class since ``waits``, when the oldest waiting
    job was submitted, but at most in the last hour. Helpers do not count, nor does use while no job waited.
    """
    now = utc_now()
    since = max(waits, now - _FAIR_OVER)
    ended = (JobRow.device_class == device_class) & (JobRow.finished > since)
    spent_s = Counter[str | None]()
    for which in (ended, _running(device_class)):  # each has an index
        query = select(JobRow.caller, JobRow.started, JobRow.finished).where(which)
        for row in session.execute(query.where(JobRow.started.is_not(None))):
            until = row.finished or now
            spent_s[row.caller] += max(0.0, (until - max(row.started, since)).total_seconds())
    return spent_s


def _oldest_readable(session: Session, which: ColumnElement[bool]) -> str | None:
    oldest = select(JobRow.id).where(which).order_by(JobRow.id).limit(1).with_for_update(skip_locked=True)
    passed = ""
    while job_id := session.scalars(oldest.where(JobRow.id > passed)).one_or_none():
        try:
            known(session, job_id)
        except Unreadable as error:
            records.set_aside(str(error))
            passed = job_id
        else:
            return job_id
    return None


def hold(session: Session, job_id: str, attempt: int) -> Held:
    """Lock a running job for this transaction, on behalf of the ``attempt``-th claim.

    Raises:
        JobTaken: the job is not running or was claimed again since.
    """
    row = session.execute(_HOLD, {"job_id": job_id}).one_or_none()
    if row is None or row.status is not JobStatus.RUNNING or row.attempt != attempt:
        raise JobTaken(f"job {job_id} is not running under claim {attempt}; stop, another may work on it")
    return Held(row.cancel_requested, None if row.progress is None else decode(JobProgress, row.progress))


def renew(session: Session, job_id: str, attempt: int, lease_s: float = LEASE_S) -> Held:
    """Hold a job for ``lease_s`` seconds from now.

    Raises:
        JobTaken: as :func:`hold`.
    """
    held = hold(session, job_id, attempt)
    until = {"lease_until": database.ahead(session, lease_s), "lease_s": lease_s}
    session.execute(update(JobRow).where(JobRow.id == job_id).values(until))
    return held


def requeue_interrupted(session: Session, device_class: str, owner: str) -> list[str]:
    """Queue again the jobs that an owner claimed and no longer works on; returns their ids, oldest first.

    Jobs that were asked to stop are cancelled instead.
    """
    return _requeue(session, device_class, JobRow.owner == owner)


_Lease = tuple[str, int, datetime | None, float | None]  # job, attempt, ``lease_until``, ``lease_s``


class LeaseWatch:
    """Tells which leases ended by this process's own clock, also where that of the database server jumps.

    A renewed lease changes. A lease has ended once it stayed unchanged for its own seconds, or for
    ``lease_s`` if an earlier release gave it out. At most ``look_s`` seconds count between two looks, because
    no holder can renew while the database does not answer.
    """

    def __init__(self, lease_s: float, look_s: float) -> None:
        self._lease_s, self._look_s = lease_s, look_s
        self._looked = time.monotonic()
        self._ages: dict[_Lease, float] = {}

    def ended(self, leases: Iterable[_Lease]) -> list[_Lease]:
        """The leases among all held ones that have ended; call it often."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, self._look_s), now
        self._ages = {one: self._ages[one] + passed if one in self._ages else 0.0 for one in leases}
        return [one for one, age in self._ages.items() if age >= (one[-1] or self._lease_s)]


def requeue_lost(session: Session, device_class: str, watch: LeaseWatch | None = None) -> list[str]:
    """Queue again the jobs without a live holder: the lease ended, or the holder was a process of this
    machine that is gone. Returns their ids, oldest first.

    On PostgreSQL, leases end by ``watch`` if it is given, else by the server's clock. Jobs that were asked to
    stop are cancelled instead. Jobs of servers that live are left alone.
    """
    running = select(JobRow.owner).where(_running(device_class)).distinct()
    is_local = session.get_bind().dialect.name == "sqlite"
    owners = [owner for owner in session.scalars(running) if owner]
    gone = [owner for owner in owners if is_gone(owner) or (is_local and _is_of_earlier_boot(owner))]
    ended = _ended(session) if is_local or watch is None else _seen_to_end(session, device_class, watch)
    return _requeue(session, device_class, or_(ended, JobRow.owner.in_(gone)))


def _ended(session: Session) -> ColumnElement[bool]:
    ends = JobRow.lease_until
    # NOTE: a lease that ends later than any was given out is one of before the clock was set back.
    return or_(
        ends.is_(None), ends < database.ahead(session), ends > database.ahead(session, _LONGEST_LEASE_S)
    )


def _seen_to_end(session: Session, device_class: str, watch: LeaseWatch) -> ColumnElement[bool]:
    lease = JobRow.id, JobRow.attempt, JobRow.lease_until, JobRow.lease_s
    held = session.execute(select(*lease).where(_running(device_class)))
    ended = watch.ended([(row.id, row.attempt, row.lease_until, row.lease_s) for row in held])
    # NOTE: with its time: it may be renewed before its row is locked.
    each = ((JobRow.id == job_id) & (JobRow.lease_until == until) for job_id, _, until, _ in ended)
    # NOTE: an earlier release does not tell how long its leases are: they must have ended by the clock too.
    by_time = or_(JobRow.lease_s.is_not(None), JobRow.lease_until < database.ahead(session))
    return or_(JobRow.lease_until.is_(None), and_(or_(false(), *each), by_time))


def _is_of_earlier_boot(owner: str) -> bool:
    """Whether an owner, known to be of this machine, lived before its last start."""
    boot = owner.partition("/")[0]
    return _BOOT.fullmatch(boot) is not None and boot != _place().partition("/")[0]


def _requeue(session: Session, device_class: str, lost: ColumnElement[bool]) -> list[str]:
    query = select(JobRow.id, JobRow.cancel_requested).where(_running(device_class), lost)
    # NOTE: a job whose row is locked is being written by its holder: it is not lost.
    query = query.order_by(JobRow.id).with_for_update(skip_locked=True)
    requeued = []
    for job_id, cancelled in session.execute(query).all():
        if cancelled:
            close_job(session, job_id, JobStatus.CANCELLED, None, lease_until=None, lease_s=None)
        else:
            # NOTE: until it is claimed again it waits, which costs its caller no device time.
            waits = {"lease_until": None, "lease_s": None, "started": None}
            change_status(session, job_id, JobStatus.QUEUED, **waits)
            requeued.append(job_id)
    return requeued


def _running(device_class: str) -> ColumnElement[bool]:
    return (JobRow.device_class == device_class) & (JobRow.status == JobStatus.RUNNING)


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
