"""Retention: what is older than its days goes, in short transactions.

Kept for ever are winners, the config sets that are served, the kernels of winners and of kept sets, and the
trials that tell what a winner of the device class costs on a problem, from which the regret of near matches
is learned. Each step looks for old rows without a lock and deletes them by their keys in a transaction of its
own, so that a prune may be stopped at any point and the next one goes on.

A prune believes the clock. One that runs by itself first asks :func:`last_work`. Rows that were written while
the clock stood in the past stay dated wrong, and go as old ones.
"""

from __future__ import annotations

import abc
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Row, Select, delete, false, func, or_, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tuner.store import entities, imports, sets
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import Store, lock_results
from tuner.store.models import (
    ArtifactRow,
    AuditRow,
    BestConfigRow,
    ConfigSetRow,
    EventRow,
    ImportedBestRow,
    JobRow,
    LadderRow,
    ProblemRow,
    ServedSetRow,
    TrialRow,
)
from tuner.store.records import RowReader, utc_now

Rows = Sequence[Row[*tuple[Any, ...]]]
Keys = tuple[InstrumentedAttribute[Any], ...]


class Kind(StrEnum):
    """What is pruned, in the order in which it is."""

    SAMPLES = "samples"
    EVENTS = "events"
    TRIALS = "trials"
    SETS = "sets"
    ARTIFACTS = "artifacts"
    JOBS = "jobs"
    AUDIT = "audit"


_PAGE = 500  # rows that one statement looks at
_STEP_S = 0.025  # NOTE: a step that takes longer is followed by one of half as many rows
_UNSYNCHRONIZED = {"synchronize_session": False}
_ENDED = JobRow.status.in_([status for status in JobStatus if status.final])


def prune(
    store: Store,
    days: Mapping[Kind, float],
    *,
    dry_run: bool = False,
    stopping: threading.Event | None = None,
    who: str = audit.SERVICE,
    now: datetime | None = None,
) -> dict[Kind, int]:
    """Delete the rows of each kind that are older than its days (0 keeps all); returns how many of each went.

    A prune that deletes any of these has one entry in the audit log, whose counts grow with each step.
    Problems that nothing names any more go too, and are not counted.

    Args:
        days: after how many days each kind goes.
        dry_run: only count what would go.
        stopping: ends the prune after a step.
        who: the caller, as written to the audit log.
        now: the time from which the days count; by the clock if None.
    """
    stopping = stopping or threading.Event()
    now = now or utc_now()
    before = {kind: now - timedelta(days=kept) for kind, kept in days.items() if kept}
    run = _Run(store, before, stopping, dry_run, who)
    removed = {kind: sum(run.steps(kind)) for kind in Kind if days.get(kind)}
    if not dry_run:
        _remove_problems(store, stopping)
    return removed


def last_work(store: Store, before: datetime) -> datetime | None:
    """When the last job was submitted here, or the last change that a caller made, before a time."""
    own = select(func.max(JobRow.created)).where(JobRow.created < before, JobRow.import_id.is_(None))
    by_caller = AuditRow.who != audit.SERVICE
    noted = select(func.max(AuditRow.created)).where(AuditRow.created < before, by_caller)
    with store.read() as session:
        return max(filter(None, map(session.scalar, (own, noted))), default=None)


def _remove_problems(store: Store, stopping: threading.Event) -> None:
    """Delete the problems that nothing names any more; callers may make up any number of them."""
    after = 0
    while not stopping.is_set():
        unnamed = entities.unnamed_problems().where(ProblemRow.id > after).order_by(ProblemRow.id)
        with store.read() as session:
            ids = session.scalars(unnamed.limit(_PAGE)).all()
        if not ids:
            return
        with store.begin() as session:
            entities.remove_unnamed_problems(session, ids)
        after = ids[-1]


class _Run:
    """One prune: what it must keep, and how many rows a step has."""

    def __init__(
        self,
        store: Store,
        before: Mapping[Kind, datetime],
        stopping: threading.Event,
        dry_run: bool,
        who: str,
    ) -> None:
        self.going: dict[Kind, Counter[str]] = {Kind.EVENTS: Counter(), Kind.TRIALS: Counter()}
        self.store, self._stopping, self._dry_run, self._who = store, stopping, dry_run, who
        self._gone, self._entry = Counter[str](), 0
        self._before, self._rows = before, 16
        with store.read() as session:
            self.old_sets = _old_sets(session, self._before.get(Kind.SETS))
            self.winning = set(_WINNING.readable(session.execute(_WINNERS)))
            self.needed = set(session.scalars(select(BestConfigRow.artifact)))
        self.needed |= self._named_by_sets()

    def steps(self, kind: Kind) -> Iterator[int]:
        """Prune one kind; gives the rows of each step."""
        rule = _RULES[kind](self)
        for found in self._pages(rule, self._before[kind]):
            while found and not self._stopping.is_set():
                part, found = found[: self._rows], found[self._rows :]
                yield len(part) if self._dry_run else self._step(kind, rule, part)

    def _pages(self, rule: _Rule, before: datetime) -> Iterator[Rows]:
        query, after = rule.old(before).order_by(*rule.keys).limit(_PAGE), None
        while not self._stopping.is_set():
            place = tuple_(*rule.keys)
            with self.store.read() as session:
                rows = session.execute(query if after is None else query.where(place > after)).all()
            yield [row for row in rows if rule.goes(row)]
            if len(rows) < _PAGE:
                return
            after = tuple_(*rows[-1][: len(rule.keys)])

    def _step(self, kind: Kind, rule: _Rule, rows: Rows) -> int:
        with self.store.begin() as session:
            session.connection()  # which waits for the lock of SQLite
            lock_results(session)
            started = time.perf_counter()
            removed = rule.remove(session, rows)
            self._note(session, kind, removed)
        took = time.perf_counter() - started
        if took > _STEP_S:
            self._rows = max(1, self._rows // 2)
        elif took < _STEP_S / 4:
            self._rows = min(_PAGE, 2 * self._rows)
        self._stopping.wait(took)  # the others' turn
        return removed

    def _note(self, session: Session, kind: Kind, removed: int) -> None:
        self._gone[kind] += removed
        if self._entry:
            audit.amend(session, self._entry, **self._gone)
        elif removed:
            self._entry = audit.note(session, self._who, Action.PRUNE, **self._gone)

    def _named_by_sets(self) -> set[str]:
        with self.store.read() as session:
            kept = session.scalars(select(ConfigSetRow.digest).where(~self.old_sets)).all()
        found = set[str]()
        for digest in kept:
            with self.store.read() as session:
                packed = sets.packed(session, digest)
            found |= sets.digests_in(packed) if packed else set()
        return found


class _Rule(abc.ABC):
    """Which rows of a kind are old, which of them go, and how.

    Attributes:
        keys: the columns by which rows follow each other; a row of :meth:`old` begins with them.
    """

    keys: ClassVar[Keys]

    def __init__(self, run: _Run) -> None:
        self._run = run

    @abc.abstractmethod
    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        """The rows that may go."""

    def goes(self, row: Any) -> bool:  # noqa: ARG002
        """Whether a row of :meth:`old` is to be deleted."""
        return True

    @abc.abstractmethod
    def remove(self, session: Session, rows: Rows) -> int:
        """Delete rows, except those that became needed since they were looked at; returns how many were
        deleted."""


class _Samples(_Rule):
    keys: ClassVar[Keys] = (TrialRow.sampled, TrialRow.job_id, TrialRow.number)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        query = select(*self.keys, TrialRow.timing).join(JobRow, JobRow.id == TrialRow.job_id)
        return query.where(TrialRow.sampled < before, _ENDED)

    def remove(self, session: Session, rows: Rows) -> int:
        # NOTE: those that were not deleted or replaced since.
        same = tuple_(*self.keys).in_([tuple(row[: len(self.keys)]) for row in rows])
        there = {tuple(row) for row in session.execute(select(*self.keys).where(_near(rows), same))}
        values = [
            {
                "job_id": row.job_id,
                "number": row.number,
                "sampled": None,
                "timing": row.timing | {"samples_us": []} if isinstance(row.timing, dict) else row.timing,
            }
            for row in rows
            if tuple(row[: len(self.keys)]) in there
        ]
        if values:
            session.execute(update(TrialRow), values)
        return len(values)


class _Events(_Rule):
    keys: ClassVar[Keys] = (EventRow.id,)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        query = select(*self.keys, EventRow.job_id).join(JobRow, JobRow.id == EventRow.job_id).where(_ENDED)
        # NOTE: ids grow with time, so that the first one that is kept ends the search through the log.
        with self._run.store.read() as session:
            kept = session.scalar(select(func.min(EventRow.id)).where(EventRow.created >= before))
        return query if kept is None else query.where(EventRow.id < kept)

    def goes(self, row: Any) -> bool:
        self._run.going[Kind.EVENTS][row.job_id] += 1
        return True

    def remove(self, session: Session, rows: Rows) -> int:
        return _delete(session, EventRow, EventRow.id.in_([row.id for row in rows]))


class _Trials(_Rule):
    keys: ClassVar[Keys] = (TrialRow.created, TrialRow.job_id, TrialRow.number)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        query = select(*self.keys, JobRow.device_class, TrialRow.config_digest, TrialRow.artifact)
        return query.join(JobRow, JobRow.id == TrialRow.job_id).where(TrialRow.created < before, _ENDED)

    def goes(self, row: Any) -> bool:
        wins = (row.device_class, row.config_digest) in self._run.winning or row.artifact in self._run.needed
        self._run.going[Kind.TRIALS][row.job_id] += not wins
        return not wins

    def remove(self, session: Session, rows: Rows) -> int:
        named = [(row.job_id, row.number) for row in rows]
        same = tuple_(TrialRow.job_id, TrialRow.number).in_(named)
        return _delete(session, TrialRow, _near(rows) & same)


class _Sets(_Rule):
    keys: ClassVar[Keys] = (ConfigSetRow.id,)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:  # noqa: ARG002
        return select(*self.keys).where(self._run.old_sets)

    def remove(self, session: Session, rows: Rows) -> int:
        old = ConfigSetRow.id.in_([row.id for row in rows]) & self._run.old_sets
        return _delete(session, ConfigSetRow, old)


class _Artifacts(_Rule):
    keys: ClassVar[Keys] = (ArtifactRow.created, ArtifactRow.digest)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        return select(*self.keys).where(ArtifactRow.created < before)

    def goes(self, row: Any) -> bool:
        return row.digest not in self._run.needed

    def remove(self, session: Session, rows: Rows) -> int:
        wins = select(BestConfigRow.id).where(BestConfigRow.artifact == ArtifactRow.digest).exists()
        near = ArtifactRow.digest.in_([row.digest for row in rows])  # as with _near
        same = tuple_(ArtifactRow.created, ArtifactRow.digest).in_([tuple(row) for row in rows])
        return _delete(session, ArtifactRow, near & same & ~wins)


class _Jobs(_Rule):
    keys: ClassVar[Keys] = (JobRow.id,)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        counts = [
            select(func.count()).where(table.job_id == JobRow.id).scalar_subquery().label(name)
            for name, table in (("events", EventRow), ("trials", TrialRow))
        ]
        ended = func.coalesce(JobRow.finished, JobRow.created) < before
        free = ~_has(BestConfigRow) & ~_has(ImportedBestRow) & imports.has_entered()
        return select(*self.keys, *counts).where(ended, _ENDED, free)

    def goes(self, row: Any) -> bool:
        # NOTE: in a dry run, what would have gone before is still there.
        left = (row.events, row.trials)
        return left == (0, 0) or left == tuple(going[row.id] for going in self._run.going.values())

    def remove(self, session: Session, rows: Rows) -> int:
        empty = ~or_(*map(_has, (EventRow, TrialRow, BestConfigRow, ImportedBestRow)))
        ids = list(session.scalars(select(JobRow.id).where(JobRow.id.in_([row.id for row in rows]), empty)))
        session.execute(delete(LadderRow).where(LadderRow.job_id.in_(ids)))
        return _delete(session, JobRow, JobRow.id.in_(ids))


class _Audit(_Rule):
    keys: ClassVar[Keys] = (AuditRow.created, AuditRow.id)

    def old(self, before: datetime) -> Select[*tuple[Any, ...]]:
        return select(*self.keys).where(AuditRow.created < before)

    def remove(self, session: Session, rows: Rows) -> int:
        return _delete(session, AuditRow, AuditRow.id.in_([row.id for row in rows]))


_RULES: dict[Kind, type[_Rule]] = {
    Kind.SAMPLES: _Samples,
    Kind.EVENTS: _Events,
    Kind.TRIALS: _Trials,
    Kind.SETS: _Sets,
    Kind.ARTIFACTS: _Artifacts,
    Kind.JOBS: _Jobs,
    Kind.AUDIT: _Audit,
}
_WINNERS = select(BestConfigRow.id, BestConfigRow.device_class, BestConfigRow.config)
_WINNING = RowReader(
    "winner",
    lambda row_id, *_: row_id,
    lambda _, device_class, config: (device_class, Config.from_dict(config).digest),
)


def _old_sets(session: Session, before: datetime | None) -> ColumnElement[bool]:
    """Sets that were superseded before a time and not pinned since, and are not served."""
    if before is None:
        return false()
    row = ConfigSetRow
    newest = select(row.device_class, func.max(row.made_latest)).where(row.made_latest < before)
    found = session.execute(newest.group_by(row.device_class)).all()
    # NOTE: never NULL, as it is negated to find the sets that stay.
    followed = [
        (row.device_class == name) & row.made_latest.is_not(None) & (row.made_latest < last)
        for name, last in found
    ]
    unpinned = row.unpinned.is_(None) | (row.unpinned < before)
    return or_(false(), *followed) & unpinned & ~_is_served()


def _is_served() -> ColumnElement[bool]:
    names = or_(ServedSetRow.latest_id == ConfigSetRow.id, ServedSetRow.pinned_id == ConfigSetRow.id)
    return select(ServedSetRow.device_class).where(names).exists()


def _near(rows: Rows) -> ColumnElement[bool]:
    """A trial lies between these.

    NOTE: SQLite looks for several columns at once in no index, and would go through the whole table.
    """
    numbers = [row.number for row in rows]
    of_their_jobs = TrialRow.job_id.in_({row.job_id for row in rows})
    return of_their_jobs & TrialRow.number.between(min(numbers), max(numbers))


def _has(table: Any) -> ColumnElement[bool]:
    """A job has a row of a table."""
    return select(table.job_id).where(table.job_id == JobRow.id).exists()


def _delete(session: Session, table: Any, which: ColumnElement[bool]) -> int:
    gone = delete(table).where(which).returning(next(iter(table.__table__.primary_key)))
    return len(session.execute(gone, execution_options=_UNSYNCHRONIZED).all())
