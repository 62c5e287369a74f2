"""Claims of queued jobs: whose turn it is, leases, and jobs whose holder is gone."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, exists, false, func, or_, select, update
from sqlalchemy.orm import Session

from tilewright.schema.codec import decode
from tilewright.schema.job import JobProgress, JobStatus
from tuner.store import database, jobs, records
from tuner.store.access import keys
from tuner.store.database import JobTaken
from tuner.store.models import EventRow, JobRow, LadderRow
from tuner.store.queue.owners import is_gone, is_of_earlier_boot
from tuner.store.records import JobRecord, Unreadable, utc_now

# NOTE: built once: building it anew costs more than SQLite takes to run it.
_HOLD = (
    select(JobRow.status, JobRow.attempt, JobRow.cancel_requested, JobRow.progress)
    .where(JobRow.id == bindparam("job_id"))
    .with_for_update()
)


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What the holder of a claim learns about its job."""

    cancel_requested: bool
    progress: JobProgress | None


_RAN_HERE = JobRow.import_id.is_(None)
_FAIR_OVER = timedelta(hours=1)
_ALIKE_S = 10.0  # callers whose device seconds differ by less have their turns one after the other
LEASE_S = 30.0
_LONGEST_LEASE_S = 2 * 3600.0  # twice what the settings allow
_MOST_STARTS = 20
_STUCK = (
    f"it was started {_MOST_STARTS} times and interrupted each time before it had one more result; look in "
    "the service's log for what ends it, then submit it again"
)


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
    jobs.change_status(session, job_id, JobStatus.RUNNING, **values)
    return jobs.get(session, job_id)


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
        last = session.scalar(select(func.max(JobRow.started)).where(mine[caller], _RAN_HERE))
        spent = int(spent_s[caller] / _ALIKE_S)
        return -priorities.get(caller or "", 0), spent, last or never, oldest[caller]

    return [mine[caller] for caller in sorted(oldest, key=turn)]


def _device_seconds(session: Session, device_class: str, waits: datetime) -> Counter[str | None]:
    """Seconds for which jobs of each caller used a device of a class since ``waits``, when the oldest waiting
    job was submitted, but at most in the last hour. Helpers do not count, nor do imported jobs, nor use while
    no job waited.
    """
    now = utc_now()
    since = max(waits, now - _FAIR_OVER)
    ended = (JobRow.device_class == device_class) & (JobRow.finished > since) & _RAN_HERE
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
            jobs.known(session, job_id)
        except Unreadable as error:
            records.log_unreadable(str(error))
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

    Jobs that were asked to stop are cancelled instead; jobs that were interrupted 20 times without a result
    in between fail.
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


def requeue_lost(session: Session, device_class: str | None, watch: LeaseWatch) -> list[str]:
    """Queue again the jobs of a device class, or of all, without a live holder: the lease ended by ``watch``,
    or the holder was a process of this machine that is gone. Returns their ids, oldest first.

    Jobs that were asked to stop, or that get nowhere, end as in :func:`requeue_interrupted`.
    """
    running = select(JobRow.owner).where(_running(device_class)).distinct()
    is_local = session.get_bind().dialect.name == "sqlite"
    owners = [owner for owner in session.scalars(running) if owner]
    gone = [owner for owner in owners if is_gone(owner) or (is_local and is_of_earlier_boot(owner))]
    lost = or_(_seen_to_end(session, device_class, watch), JobRow.owner.in_(gone))
    return _requeue(session, device_class, lost)


def _seen_to_end(session: Session, device_class: str | None, watch: LeaseWatch) -> ColumnElement[bool]:
    lease = JobRow.id, JobRow.attempt, JobRow.lease_until, JobRow.lease_s
    held = session.execute(select(*lease).where(_running(device_class)))
    ended = watch.ended([(row.id, row.attempt, row.lease_until, row.lease_s) for row in held])
    # NOTE: with its time: it may be renewed before its row is locked.
    each = ((JobRow.id == job_id) & (JobRow.lease_until == until) for job_id, _, until, _ in ended)
    # NOTE: an earlier release does not tell how long its leases are: they must have ended by the clock too,
    # or end later than any that was given out, as those of before the clock was set back.
    ends = JobRow.lease_until
    over = or_(ends < database.ahead(session), ends > database.ahead(session, _LONGEST_LEASE_S))
    by_time = or_(JobRow.lease_s.is_not(None), over)
    return or_(JobRow.lease_until.is_(None), and_(or_(false(), *each), by_time))


def _requeue(session: Session, device_class: str | None, lost: ColumnElement[bool]) -> list[str]:
    query = select(JobRow.id, JobRow.cancel_requested).where(_running(device_class), lost)
    # NOTE: a job whose row is locked is being written by its holder: it is not lost.
    query = query.order_by(JobRow.id).with_for_update(skip_locked=True)
    requeued = []
    for job_id, cancelled in session.execute(query).all():
        free = {"lease_until": None, "lease_s": None}
        if cancelled:
            jobs.close_job(session, job_id, JobStatus.CANCELLED, None, **free)
        elif _is_stuck(session, job_id):
            jobs.close_job(session, job_id, JobStatus.FAILED, _STUCK, **free)
        else:
            # NOTE: until it is claimed again it waits, which costs its caller no device time.
            jobs.change_status(session, job_id, JobStatus.QUEUED, started=None, **free)
            requeued.append(job_id)
    return requeued


def _is_stuck(session: Session, job_id: str) -> bool:
    """Whether a job was started as often as it may be since it was submitted or had its last result."""
    of_job = EventRow.job_id == job_id
    # NOTE: a ladder has a winner of each row once; another job races again after each start.
    is_ladder = session.scalar(select(exists().where(LadderRow.job_id == job_id)))
    results = EventRow.kind.in_(("trial", "row", "best") if is_ladder else ("trial",))
    last = select(func.coalesce(func.max(EventRow.id), 0)).where(of_job, results)
    since = select(EventRow.data).where(
        of_job, EventRow.kind == "status", EventRow.id > last.scalar_subquery()
    )
    # NOTE: a damaged row is text.
    states = [data.get("status") for data in session.scalars(since) if isinstance(data, dict)]
    return states.count(JobStatus.RUNNING) >= _MOST_STARTS


def _running(device_class: str | None) -> ColumnElement[bool]:
    running = JobRow.status == JobStatus.RUNNING
    return running if device_class is None else (JobRow.device_class == device_class) & running
