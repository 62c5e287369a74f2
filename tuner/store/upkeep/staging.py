"""Imports, and deletions of imports and problems, in short transactions.

An import, and the deletion of one, is visible as a whole or not at all.

Until an import ends, its rows are kept under an import id of their own, apart from its final id. An import
that does not end is rolled back. An import that has ended, but whose process died before its winners were
merged, is completed. An import that is being deleted is hidden from the first step on, and rolled back like
one that did not end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute, Session

from tilewright.schema.codec import encode
from tilewright.schema.entries import Import, RecordCounts
from tilewright.schema.problem import GemmProblem
from tuner.store import best, imports
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.best import Merged
from tuner.store.database import Store, StoreError, WritersBusy, insert_row, lock_results
from tuner.store.models import EventRow, ImportRow, JobRow, TrialRow
from tuner.store.queue import owners
from tuner.store.records import RowReader, Unreadable, utc_now

_ROWS, _JOBS, _KERNELS = 1000, 20, 20  # that one transaction deletes
_WINNERS = 50  # that one transaction merges
_GIVEN_UP = timedelta(hours=1)
_owner = functools.cache(owners.new_owner)
_Step = Callable[[], AbstractContextManager[Session]]
log = logging.getLogger("tilewright.imports")


class BrokeOff(StoreError):
    """The service stopped during the operation; :func:`settle_lost` completes it."""


class _Settled(Exception):
    """Another process took back what was left of the import."""


def begin(session: Session, entering: Import) -> Import:
    """The import under whose id the results of ``entering`` are kept until its end.

    Raises:
        StoreError: there is an import of its id that was signed otherwise.
    """
    imports.is_new(session, entering)
    staged = dataclasses.replace(entering, id=secrets.token_hex(16))
    insert_row(session, ImportRow, {**dataclasses.asdict(staged), "staged": _state([])})
    return staged


def go_on(session: Session, staged: Import, joined: Sequence[tuple[str, int]]) -> None:
    """Note that the import lives, and which trials of this transaction joined jobs that were here before.

    Raises:
        StoreError: it was taken back meanwhile.
    """
    state = _staged(session, staged.id)
    change = update(ImportRow).where(ImportRow.id == staged.id)
    session.execute(change.values(staged=_state([*state["joined"], *_runs(joined)])))


def end(session: Session, staged: Import, entering: Import) -> bool:
    """Let the results show as those of ``entering``; gives whether that is a new import. Its winners follow
    by :func:`merge_winners`."""
    lock_results(session)
    is_new = imports.enter(session, entering)
    session.execute(update(JobRow).where(JobRow.import_id == staged.id).values(import_id=entering.id))
    imports.hand_on_kernels(session, staged.id, entering.id)
    ended = _staged(session, staged.id) | {"into": entering.id}
    session.execute(update(ImportRow).where(ImportRow.id == staged.id).values(staged=ended))
    return is_new


def merge_winners(store: Store, staged_id: str, entering: Import) -> list[Merged]:
    """Merge the winners of an import that :func:`end` let show, and close it; those that are left go with an
    import that was deleted meanwhile."""
    found = list[Merged]()
    while True:
        with store.begin() as session:
            lock_results(session)
            if imports.get(session, entering.id) is None:
                if session.get(ImportRow, staged_id):
                    imports.remove(session, staged_id)
                return found
            some = best.merge_staged(session, staged_id, entering, _WINNERS)
            if not some:
                imports.hand_on_kernels(session, staged_id, entering.id)
                session.execute(delete(ImportRow).where(ImportRow.id == staged_id))
                return found
        found += some


def remove(store: Store, import_id: str, who: str, stopping: threading.Event | None = None) -> RecordCounts:
    """Take out everything that an import brought: what is served of it at once, the rest in small steps.

    Winners that were raced here stand as before, since no import takes their place. A pinned config set that
    names a winner of the import is pinned no more. A removal that broke off goes on where it is asked for
    again, else by :func:`settle_lost`. If several run at once, each counts what it deleted itself.

    Args:
        who: asked for it, as the audit log has it.
        stopping: ends it after a step.

    Raises:
        BrokeOff: ``stopping`` was set before its end.
        StoreError: there is no import of this id.
    """
    with store.begin() as session:
        lock_results(session)
        row = session.get(ImportRow, import_id)
        if row is None or (isinstance(row.staged, dict) and not row.staged.get("leaving")):
            raise imports.unknown(import_id)
        winners = imports.remove_winners(session, import_id)
        row.staged = _state([]) | {"leaving": True}
        entry = audit.note(session, who, Action.DELETE_IMPORT, import_id, best=winners)
    taken = Counter(best=winners)
    with _told(store, entry, taken):
        _take_back(store, import_id, [], stopping, taken)
        _amend(store, entry, taken)
    return RecordCounts(**taken)


def remove_problem(
    store: Store, problem: GemmProblem, who: str, stopping: threading.Event | None = None
) -> RecordCounts:
    """Take out all results of a problem: what is served of it and its misses at once, the rest in small
    steps.

    Jobs and winners that come meanwhile are new results: they stay, and the problem with them. So does what
    an import on its way in brings. A stop in between leaves no winner that was there before, and the jobs
    with a part of their trials and events. It is safe to call this again: that deletes the rest, and what is
    new by then.

    Args:
        who: asked for it, as the audit log has it.
        stopping: ends it after a step.

    Raises:
        BrokeOff: ``stopping`` was set before its end.
        InUse: a job of the problem waits or runs at the start.
        StoreError: it has no results.
    """
    with store.begin() as session:
        winners = imports.remove_served(session, problem)
        jobs = imports.jobs_of(session, problem)
        entry = audit.note(session, who, Action.DELETE_PROBLEM, problem, best=winners)
    step, taken = functools.partial(_short, store, str(problem), stopping), Counter(best=winners)
    with _told(store, entry, taken):
        for job_id, m in jobs:
            _delete_trials(step, taken, job_id, *(() if m is None else _of_row(store, job_id, m)))
            if m is None:
                sum(_deleted(step, EventRow.id, job_id))
        with step() as session:
            rest = imports.remove_listed(session, problem, {job_id for job_id, _ in jobs})
            all_taken = encode(RecordCounts(**(taken + Counter(encode(rest)))))
            audit.amend(session, entry, **all_taken)
    return RecordCounts(**all_taken)


@contextlib.contextmanager
def _told(store: Store, entry: int, taken: Counter[str]) -> Iterator[None]:
    """Amend the audit entry of a deletion that breaks off with what is gone."""
    try:
        yield
    except Exception:
        with contextlib.suppress(SQLAlchemyError, WritersBusy):  # what broke it off says more
            _amend(store, entry, taken)
        raise


def _amend(store: Store, entry: int, taken: Counter[str]) -> None:
    with store.begin() as session:
        audit.amend(session, entry, **encode(RecordCounts(**taken)))


def settle(store: Store, staged_id: str, stopping: threading.Event | None = None) -> None:
    """Take an import back, or bring it to its end if it shows already; nothing if another process did.

    Raises:
        BrokeOff: ``stopping`` was set before its end.
    """
    with store.read() as session:
        row = session.get(ImportRow, staged_id)
        state = row and row.staged
        entering = imports.get(session, state.get("into", "")) if state else None
    if entering:
        merge_winners(store, staged_id, entering)
    elif state:
        _take_back(store, staged_id, state["joined"], stopping, Counter())


def settle_lost(store: Store, *, leaving: bool = True, stopping: threading.Event | None = None) -> None:
    """Settle the imports whose processes ended, or were not heard of for an hour. Those that this release
    cannot read are set aside; they show nowhere, and can be deleted by their id.

    Args:
        leaving: those too that are being deleted, which show nowhere meanwhile.
        stopping: ends it after a step.

    Raises:
        BrokeOff: ``stopping`` was set before its end.
    """
    with store.read() as session:
        found = _READER.readable(session.execute(_all()))
    for one in found:
        if one.lost and (leaving or not one.leaving):
            settle(store, one.id, stopping)
            log.info("import %s had not ended; it was %s", one.id, "finished" if one.shown else "undone")


def unreadable(session: Session) -> list[Unreadable]:
    """Why this release cannot settle those of the imports that it cannot."""
    return _READER.unreadable(session.execute(_all()))


@dataclasses.dataclass(frozen=True, slots=True)
class _Unsettled:
    """An import that has not ended. ``lost``: its process ended, or was not heard of for an hour.
    ``leaving``: it is being deleted. ``shown``: its results show already."""

    id: str
    lost: bool
    leaving: bool
    shown: bool


def _unsettled(import_id: str, state: Any) -> _Unsettled:
    if not isinstance(state, dict) or not isinstance(state.get("joined"), list):
        raise ValueError(f"column 'staged' must hold a JSON object with a list 'joined', not {state!r:.40}")
    silent = utc_now() - datetime.fromisoformat(state["at"])
    lost = owners.is_gone(state["owner"]) or silent > _GIVEN_UP
    return _Unsettled(import_id, lost, bool(state.get("leaving")), "into" in state)


def _all() -> Select[str, Any]:
    return select(ImportRow.id, ImportRow.staged).where(ImportRow.staged.is_not(None)).order_by(ImportRow.id)


_READER = RowReader("import", lambda import_id, _state: import_id, _unsettled)


def _take_back(
    store: Store,
    staged_id: str,
    joined: Iterable[tuple[str, int, int]],
    stopping: threading.Event | None,
    taken: Counter[str],
) -> None:
    """Delete what an import brought; adds to ``taken`` how much of it this process did."""
    with contextlib.suppress(_Settled):
        _take_steps(functools.partial(_step, store, staged_id, stopping), store, staged_id, joined, taken)


def _take_steps(
    step: _Step, store: Store, staged_id: str, joined: Iterable[tuple[str, int, int]], taken: Counter[str]
) -> None:
    own = select(JobRow.id).where(JobRow.import_id == staged_id)
    with store.read() as session:
        ids = list(session.scalars(own))
    for job_id in ids:
        _delete_trials(step, taken, job_id)
    for job_id, first, last in joined:
        _delete_trials(step, taken, job_id, TrialRow.number.between(first, last))
    while ids:
        with step() as session:
            ids = list(session.scalars(own.limit(_JOBS)))
            imports.remove_jobs(session, ids)
        taken["jobs"] += len(ids)
    some = 1
    while some:
        with step() as session:
            some = imports.remove_kernels(session, staged_id, _KERNELS)
        taken["artifacts"] += some
    with step() as session:
        imports.remove(session, staged_id)


def _delete_trials(step: _Step, taken: Counter[str], job_id: str, *among: ColumnElement[bool]) -> None:
    for count in _deleted(step, TrialRow.number, job_id, *among):
        taken["trials"] += count


def _deleted(
    step: _Step, key: InstrumentedAttribute[int], job_id: str, *among: ColumnElement[bool]
) -> Iterator[int]:
    """Delete rows of a job in the order of a key; gives how many each step deleted."""
    table, after, count = key.class_, -1, _ROWS
    while count == _ROWS:
        some = select(key).where(table.job_id == job_id, key > after, *among).order_by(key).limit(_ROWS)
        gone = delete(table).where(table.job_id == job_id, key.in_(some)).returning(key)
        with step() as session:
            found = session.scalars(gone, execution_options={"synchronize_session": False}).all()
        count, after = len(found), max(found, default=after)
        yield count


def _of_row(store: Store, job_id: str, m: int) -> tuple[ColumnElement[bool], ...]:
    """The conditions that a trial of a job is of a row of its ladder."""
    of_row = TrialRow.m == m
    # NOTE: no step goes through the trials beyond these, as no index has the row.
    ends = select(func.min(TrialRow.number), func.max(TrialRow.number))
    with store.read() as session:
        first, last = session.execute(ends.where(TrialRow.job_id == job_id, of_row)).one()
    return of_row, TrialRow.number.between(first or 0, last or 0)


@contextlib.contextmanager
def _step(store: Store, staged_id: str, stopping: threading.Event | None) -> Iterator[Session]:
    """A step of an import's deletion, see :func:`_short`, which tells that this process is at it.

    Raises:
        BrokeOff: ``stopping`` is set.
        _Settled: the import is gone, or was brought again.
    """
    with _short(store, f"import {staged_id}", stopping) as session:
        row = session.get(ImportRow, staged_id)
        if row is None or row.staged is None:
            raise _Settled
        row.staged = row.staged | _state(row.staged["joined"])
        session.flush()
        yield session


@contextlib.contextmanager
def _short(store: Store, what: str, stopping: threading.Event | None) -> Iterator[Session]:
    """A short transaction that holds the lock on results; a pause of the same length follows for other
    writers.

    Raises:
        BrokeOff: ``stopping`` is set before all of ``what`` is gone.
    """
    if stopping and stopping.is_set():
        raise BrokeOff(f"the service stops before what is left of {what} is gone; ask again once it runs")
    with store.begin() as session:
        session.connection()  # which waits for the lock of SQLite
        lock_results(session)
        started = time.monotonic()
        yield session
    time.sleep(time.monotonic() - started)


def _staged(session: Session, staged_id: str) -> dict[str, Any]:
    state: dict[str, Any] | None = session.scalar(select(ImportRow.staged).where(ImportRow.id == staged_id))
    if state is None:
        raise StoreError("the import was taken back, as nothing was heard of it; import the file again")
    return state


def _state(joined: list[tuple[str, int, int]]) -> dict[str, Any]:
    return {"owner": _owner(), "at": utc_now().isoformat(), "joined": joined}


def _runs(joined: Sequence[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Jobs with the first and last number of trials that follow each other."""
    placed = enumerate(sorted(joined))
    runs = [list(run) for _, run in itertools.groupby(placed, lambda one: (one[1][0], one[1][1] - one[0]))]
    return [(run[0][1][0], run[0][1][1], run[-1][1][1]) for run in runs]
