"""Misses: problems that ran without a current result, ranked by the device time at stake.

A miss is open while its device class has no winner for the problem or, where a stale winner was served,
while that winner has not been replaced since. There is something to do about it while no job is at it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from tilewright.schema.codec import gathered
from tilewright.schema.entries import MissReason, MissRecord
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import QUICK_METHOD
from tuner.store import entities, records
from tuner.store.database import Lock, hold, insert_new
from tuner.store.models import BestConfigRow, DeviceRow, JobRow, LadderRow, MissRow, ProblemRow, RetuneRow
from tuner.store.records import RowReader, utc_now

AFTER_FAILURE = timedelta(days=1)  # until a problem is tuned again whose job settled nothing
_REMEMBERED = timedelta(days=30)
_at_stake = MissRow.count * MissRow.time_us
_MISSING = MissRow.reason == MissReason.MISSING
_STALE = MissRow.reason == MissReason.STALE
Place = tuple[float, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A problem that ran ``count`` times, ``time_us`` microseconds each, ``measured`` or estimated."""

    problem: GemmProblem
    count: int
    time_us: float
    measured: bool


@dataclasses.dataclass(frozen=True)
class OpenMiss(MissRecord):
    """An open miss as kept; ``id`` stays that of its problem and device class."""

    id: int

    @property
    def place(self) -> Place:
        """Where it stands in the list."""
        return self.count * self.time_us, self.id


def note(
    session: Session,
    device_class: str,
    reports: Sequence[Report],
    most: int,
    reason: MissReason = MissReason.MISSING,
    caller: str | None = None,
) -> list[GemmProblem]:
    """Add up reports of a ``caller``, None for the service; gives the problems of those that were kept.

    The list of a device class holds ``most`` problems. Classes of which no device was ever seen share one
    list, because callers may name any number of them; problems not seen there for a month make room. In a
    full list, tuned problems make room first. Then the caller with the most problems in the list loses those
    of least stake to a caller with fewer, 1 % of the list at once. If nothing makes room, new problems are
    dropped, and known ones are still counted. A measured time replaces an estimated one, never the reverse.
    """
    known = _known(session, device_class, reports)
    room = _Room(session, device_class, most, len(reports) - len(known), writes=True)
    kept = room.fitting(reports, known, caller)
    # NOTE: in one order for all, so that no two reports wait for each other's rows.
    for report in sorted(kept, key=lambda one: records.canonical(one.problem.to_dict())):
        _count(session, device_class, report, reason, caller)
    room.clear(session, caller)
    return [report.problem for report in kept]


def fitting(
    session: Session, device_class: str, reports: Sequence[Report], most: int, caller: str
) -> list[Report]:
    """The reports that :func:`note` would keep. A look at a full list takes milliseconds; in a transaction
    that only reads, those that are dropped hold up nobody who writes."""
    known = _known(session, device_class, reports)
    room = _Room(session, device_class, most, len(reports) - len(known), writes=False)
    return room.fitting(reports, known, caller)


class _Room:
    """The free places of a list, and the misses to delete at the end of the transaction for new ones."""

    def __init__(self, session: Session, device_class: str, most: int, wanted: int, *, writes: bool) -> None:
        self._alike, self._closed = _list_of(session, device_class)
        self._at_once, self._any_closed = most // 100, False
        self._going, self._holders = Counter[str | None](), Counter[str | None]()
        size = select(func.count()).select_from(MissRow).where(self._alike)
        self._free = most - session.scalars(size).one()
        if self._free < wanted:
            if writes:
                # NOTE: before any miss is locked. Else two reports would each make room for what both add.
                hold(session, Lock.MISSES)
            closed = _held(session, self._alike & self._closed)
            held = _held(session, self._alike) - closed
            self._any_closed, self._free = bool(closed), most - held.total()
            for (caller, reason), count in held.items():
                self._holders[caller] += count if reason == MissReason.MISSING else 0
            for _ in range(-self._free):  # NOTE: those that found it free add to it at the same time
                self._displace(0)

    def fitting(self, reports: Sequence[Report], known: set[str], caller: str | None) -> list[Report]:
        """The reports of problems that are ``known``, and of others that have a place."""
        kept, there = list[Report](), known.copy()
        for report in reports:
            problem = records.canonical(report.problem.to_dict())
            if problem in there or self._take(caller):
                there.add(problem)
                kept.append(report)
        return kept

    def _take(self, caller: str | None) -> bool:
        """Take a place for a miss of a caller; False if there is none."""
        taken = self._free > 0 or self._displace(self._holders[caller] + 1)
        self._free -= self._free > 0
        self._holders[caller] += taken
        return taken

    def _displace(self, least: int) -> bool:
        """Take a place from the caller with the most misses, if that caller has more than ``least``."""
        largest, count = max(self._holders.items(), key=itemgetter(1), default=(None, 0))
        if count <= least:
            return False
        self._holders[largest] -= 1
        self._going[largest] += 1
        return True

    def clear(self, session: Session, caller: str | None) -> None:
        """Delete the misses that make room for those of a caller, and for the next ones."""
        # NOTE: at the end, without rows that others count just now: no two reports wait for each other.
        if self._any_closed:
            self._forget(session, select(MissRow.id).where(self._alike, self._closed))
        if self._going:
            for _ in range(self._going.total(), self._at_once):
                self._displace(self._holders[caller] + 1)
        for holder, count in self._going.items():
            own = MissRow.caller.is_not_distinct_from(holder)
            least = (
                select(MissRow.id).where(self._alike, _MISSING, own).order_by(_at_stake, MissRow.id.desc())
            )
            self._forget(session, least.limit(count))

    def _forget(self, session: Session, which: Select[int]) -> None:
        going = select(which.with_for_update(skip_locked=True).cte().c.id)
        session.execute(
            delete(MissRow).where(MissRow.id.in_(going)), execution_options={"synchronize_session": False}
        )


def ranked(
    session: Session, device_class: str | None, limit: int, after: Place | None = None
) -> list[OpenMiss]:
    """Open misses of a device class or of all that no job is at, the largest stake first, from the one that
    follows the place ``after``."""
    which = [] if device_class is None else [MissRow.device_class == device_class]
    return _ranked(session, limit, *which, *([_behind(after)] if after else []))


def top_of(
    session: Session,
    device_class: str,
    count: int,
    families: Collection[str],
    able: Callable[[GemmProblem], frozenset[str]],
    known: dict[str, frozenset[str]],
) -> list[OpenMiss]:
    """The first ``count`` misses of :func:`ranked` whose problems some family computes, and all of
    ``families`` do, however many others are before them.

    ``able`` says which families compute a problem. ``known`` keeps what it said of the problems on the list,
    by their texts, for the next call: one that has to ask of all 10,000 again takes 20 times as long.
    """
    query = _waiting(MissRow.device_class == device_class)
    rows = session.execute(query.with_only_columns(MissRow.id, ProblemRow.canonical)).all()

    def is_wanted(_id: int, problem: str) -> bool:
        if problem not in known:
            known[problem] = able(entities.parse_problem(problem))
        return bool(known[problem]) and known[problem].issuperset(families)

    reader, found = RowReader("miss", lambda miss_id, _problem: miss_id, is_wanted), list[OpenMiss]()
    ids = (row.id for row in rows if reader.tried(row) is True)
    while len(found) < count and (some := list(itertools.islice(ids, count - len(found)))):
        found += _ranked(session, len(some), MissRow.id.in_(some))
    for gone in known.keys() - {row.canonical for row in rows}:
        del known[gone]
    return found


def still_open(session: Session, found: Sequence[OpenMiss]) -> list[OpenMiss]:
    """Those of some misses that are open and that no job is at, the largest stake first."""
    return _ranked(session, len(found), MissRow.id.in_([miss.id for miss in found]))


def _ranked(session: Session, limit: int, *which: ColumnElement[bool]) -> list[OpenMiss]:
    both = _waiting(*which).with_only_columns(MissRow, ProblemRow.canonical)
    return _READER.page(session, both, limit, _following)


def _waiting(*which: ColumnElement[bool]) -> Select[Any]:
    """Open misses that no job is at, the largest stake first."""
    return _open().where(~_being_tuned(), *which).order_by(_at_stake.desc(), MissRow.id)


def _behind(place: Place) -> ColumnElement[bool]:
    return or_(_at_stake < place[0], and_(_at_stake == place[0], MissRow.id > place[1]))


def _following(row: MissRow, _problem: str) -> ColumnElement[bool]:
    return _behind((row.count * row.time_us, row.id))


def _count(
    session: Session, device_class: str, report: Report, reason: MissReason, caller: str | None
) -> None:
    now, problem_id = utc_now(), entities.ensure_problem(session, report.problem)
    timed = {"time_us": report.time_us, "measured": report.measured}
    fresh = {"reason": reason, "count": report.count, "first_seen": now, "last_seen": now}
    identity = {"device_class": device_class, "problem_id": problem_id}
    if insert_new(session, MissRow, {**identity, **fresh, **timed, "caller": caller}):
        return
    mine = update(MissRow).where(MissRow.device_class == device_class, MissRow.problem_id == problem_id)
    if reason == MissReason.MISSING:
        # NOTE: the reason stays: a client that has not fetched a stale winner must not hide that it is one.
        session.execute(mine.values(count=MissRow.count + report.count, last_seen=now))
    else:
        count = case((MissRow.reason == reason, MissRow.count), else_=0) + report.count
        session.execute(mine.values(**fresh | {"count": count}))
    if report.measured:
        session.execute(mine.values(**timed))


def _known(session: Session, device_class: str, reports: Sequence[Report]) -> set[str]:
    texts = [records.canonical(one.problem.to_dict()) for one in reports]
    query = select(ProblemRow.canonical).join(MissRow, MissRow.problem_id == ProblemRow.id)
    query = query.where(MissRow.device_class == device_class, ProblemRow.canonical.in_(texts))
    # NOTE: for no text SQLite would go through all misses.
    return set(session.scalars(query)) if texts else set()


_UNSEEN = MissRow.device_class.not_in(select(DeviceRow.device_class))


def _list_of(session: Session, device_class: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The misses that share the list of a device class, and which of them go first: tuned ones, and those of
    a class never seen, not reported for a month."""
    seen = session.scalar(select(DeviceRow.id).where(DeviceRow.device_class == device_class).limit(1))
    if seen is not None:
        return MissRow.device_class == device_class, _is_tuned()
    return _UNSEEN, _is_tuned() | (MissRow.last_seen < utc_now() - _REMEMBERED)


def _held(session: Session, which: ColumnElement[bool]) -> Counter[tuple[str | None, MissReason]]:
    """How many misses each caller has, by reason."""
    kinds = MissRow.caller, MissRow.reason
    rows = session.execute(select(*kinds, func.count()).where(which).group_by(*kinds))
    return Counter({(caller, reason): count for caller, reason, count in rows})


def open_stale(device_class: str) -> Select[Any]:
    """Open misses of stale winners that no job is at, the largest stake first."""
    return _waiting(MissRow.device_class == device_class, _STALE)


def _open() -> Select[Any]:
    query = select(MissRow).join(ProblemRow, ProblemRow.id == MissRow.problem_id)
    return query.where(~_is_tuned())


def _being_tuned() -> ColumnElement[bool]:
    live = JobRow.status.in_((JobStatus.QUEUED, JobStatus.RUNNING))
    here = and_(JobRow.device_class == MissRow.device_class, live)
    row = and_(LadderRow.job_id == JobRow.id, LadderRow.problem_id == MissRow.problem_id)
    return or_(exists().where(here, JobRow.problem_id == MissRow.problem_id), exists().where(here, row))


def _is_tuned() -> ColumnElement[bool]:
    """There is a winner, and where a stale one was served, it has been replaced since."""
    return exists().where(
        BestConfigRow.problem_id == MissRow.problem_id,
        BestConfigRow.device_class == MissRow.device_class,
        BestConfigRow.quarantine_id.is_(None),
        or_(_MISSING, BestConfigRow.created > MissRow.first_seen),
    )


def _record(row: MissRow, problem: str) -> OpenMiss:
    of, reason = entities.parse_problem(problem), MissReason(row.reason)
    given = {"problem": of, "reason": reason, "stake_s": row.count * row.time_us / 1e6}
    return OpenMiss(**gathered(OpenMiss, row, **given))


_READER = RowReader("miss", lambda row, _problem: row.id, _record)


def ask(session: Session, device_class: str, found: Iterable[GemmProblem], wanted: str) -> None:
    """Have problems tuned again by a service in the state ``wanted``, unless one was at it before."""
    for problem in found:
        identity = {"device_class": device_class, "problem_id": entities.ensure_problem(session, problem)}
        insert_new(session, RetuneRow, {**identity, "wanted": wanted})


def top(session: Session, device_class: str, wanted: str) -> GemmProblem | None:
    """The problem with the largest stake that was asked for; None if all were tuned again already, or are
    being tuned for any other reason. A problem whose job settled nothing is tuned again a day later."""
    mine = and_(RetuneRow.device_class == MissRow.device_class, RetuneRow.problem_id == MissRow.problem_id)
    query = open_stale(device_class).join(RetuneRow, mine)
    query = query.where(RetuneRow.wanted == wanted, _untaken())
    found = _READER.page(session, query.with_only_columns(MissRow, ProblemRow.canonical), 1, _following)
    return found[0].problem if found else None


def take(session: Session, device_class: str, problem: GemmProblem, wanted: str) -> bool:
    """Claim a problem, until its job settles nothing; False if another device claimed it before."""
    this = _this(session, device_class, problem, wanted)
    taken = update(RetuneRow).where(this, _untaken()).values(queued=utc_now())
    return session.execute(taken.returning(RetuneRow.wanted)).first() is not None


def _untaken() -> ColumnElement[bool]:
    """Whether a problem may be taken up: no service took it up yet, its job or its row of a ladder ended
    more than a day ago and settled nothing, or since then its winner drifted or a quick job replaced it."""
    won = aliased(BestConfigRow)
    winner = and_(won.device_class == RetuneRow.device_class, won.problem_id == RetuneRow.problem_id)
    row = and_(LadderRow.job_id == JobRow.id, LadderRow.problem_id == RetuneRow.problem_id)
    # NOTE: the result of a disturbed race does not take the place of one that others did not disturb.
    kept = exists().where(winner, won.created >= JobRow.created).correlate(RetuneRow, JobRow)
    in_vain = or_(JobRow.status == JobStatus.FAILED, and_(JobRow.status == JobStatus.SUCCEEDED, ~kept))
    of_row = and_(row, or_(in_vain, LadderRow.error.is_not(None)))
    alone = and_(JobRow.problem_id == RetuneRow.problem_id, in_vain)
    after = and_(
        JobRow.device_class == RetuneRow.device_class,
        JobRow.created >= RetuneRow.queued,
        JobRow.finished < utc_now() - AFTER_FAILURE,
    )
    failed = or_(exists().where(after, alone), exists().where(after, of_row))
    drifted = exists().where(winner, won.drifted > RetuneRow.queued)
    # NOTE: as text, since SQLite fails a query that reads damaged JSON.
    of_quick = cast(won.provenance, Text).contains(f'{QUICK_METHOD}"')
    quick = exists().where(winner, won.created > RetuneRow.queued, of_quick)
    return or_(RetuneRow.queued.is_(None), failed, drifted, quick)


def withdraw(session: Session, device_class: str, problem: GemmProblem, wanted: str) -> None:
    """Forget that a problem was asked for, until it is asked for again."""
    session.execute(delete(RetuneRow).where(_this(session, device_class, problem, wanted)))


def _this(session: Session, device_class: str, problem: GemmProblem, wanted: str) -> ColumnElement[bool]:
    return and_(
        RetuneRow.device_class == device_class,
        RetuneRow.problem_id == entities.find_problem(session, problem),
        RetuneRow.wanted == wanted,
    )
