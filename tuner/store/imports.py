"""Imports: which results entered together and who signed them, and how results are taken out again."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, false, func, or_, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from tilewright.schema.codec import gathered
from tilewright.schema.entries import Import, ImportCounts, RecordCounts
from tilewright.schema.problem import GemmProblem
from tuner.store import entities, ladder_gaps, sets
from tuner.store.database import StoreError, insert_new, lock_results
from tuner.store.models import (
    ArtifactRow,
    BestConfigRow,
    EventRow,
    ImportedBestRow,
    ImportRow,
    JobRow,
    LadderRow,
    MissRow,
    RetuneRow,
    ServedSetRow,
    TrialRow,
    TrialSlotRow,
)

Place = tuple[datetime, str]
_UNSYNCHRONIZED = {"synchronize_session": False}


def enter(session: Session, entering: Import) -> bool:
    """Open an import, or go on with one; True if it is new.

    Raises:
        StoreError: there is one of this id that was signed otherwise.
    """
    return is_new(session, entering) and insert_new(session, ImportRow, dataclasses.asdict(entering))


def is_new(session: Session, entering: Import) -> bool:
    """Whether there is no import of this id yet.

    Raises:
        StoreError: there is one that was signed otherwise, or is being deleted.
    """
    there = session.get(ImportRow, entering.id)
    if there and there.staged is not None:
        raise StoreError(f"import {entering.id} is being deleted; import the file again once it is gone")
    if there and (there.trusted, there.signer) != (entering.trusted, entering.signer):
        raise StoreError(
            f"import {entering.id} began with other signatures: its file was changed or put together; import"
            " the rest of it by itself"
        )
    return there is None


def get(session: Session, import_id: str) -> Import | None:
    """The import of an id, or None also while it enters or is deleted."""
    row = session.get(ImportRow, import_id)
    return None if row is None or row.staged is not None else Import(**gathered(Import, row))


def listing(session: Session, limit: int = 50, before: Place | None = None) -> list[Import]:
    """Imports, the newest first; ``before`` is the place of the last one of the page before, which may be
    deleted since."""
    query = select(ImportRow).where(ImportRow.staged.is_(None)).limit(limit)
    query = query.order_by(ImportRow.created.desc(), ImportRow.id.desc())
    if before is not None:
        query = query.where(tuple_(ImportRow.created, ImportRow.id) < tuple_(*before))
    return [Import(**gathered(Import, row)) for row in session.scalars(query)]


def counts(session: Session, import_id: str) -> ImportCounts:
    """How much of an import there is."""

    def count(column: InstrumentedAttribute[Any]) -> int:
        return session.scalars(select(func.count()).where(column == import_id)).one()

    columns = (JobRow.import_id, BestConfigRow.import_id, ImportedBestRow.import_id)
    return ImportCounts(*map(count, columns))


def is_trusted() -> ColumnElement[bool]:
    """The condition that a job ran in this store, or came in an import that a trusted key signed."""
    trusted = select(ImportRow.id).where(ImportRow.trusted)
    return or_(JobRow.import_id.is_(None), JobRow.import_id.in_(trusted))


def has_entered(column: InstrumentedAttribute[str | None] = JobRow.import_id) -> ColumnElement[bool]:
    """The condition that a row does not belong to an import that is still in progress."""
    staged = select(ImportRow.id).where(ImportRow.staged.is_not(None))
    return or_(column.is_(None), column.not_in(staged))


class InUse(StoreError):
    """A job is working on the results that are to be removed."""


def remove(session: Session, import_id: str) -> RecordCounts:
    """Take out everything that an import brought.

    Winners that were raced here stand as before, since no import takes their place. A pinned config set that
    names a winner of the import is pinned no more.

    Raises:
        StoreError: there is no import of this id.
    """
    lock_results(session)
    if session.get(ImportRow, import_id) is None:
        raise unknown(import_id)
    winners = remove_winners(session, import_id)
    ids = list(session.scalars(select(JobRow.id).where(JobRow.import_id == import_id)))
    trials = remove_jobs(session, ids)
    entities.remove_described(session)
    kernels = remove_kernels(session, import_id)
    hand_on_kernels(session, import_id, func.coalesce(*(one.scalar_subquery() for one in _needing())))
    session.execute(delete(ImportRow).where(ImportRow.id == import_id))
    return RecordCounts(len(ids), trials, kernels, winners)


def unknown(import_id: str) -> StoreError:
    """The error for an import that is not there."""
    return StoreError(f"there is no import {import_id}; 'tilewright imports' lists those there are")


def remove_winners(session: Session, import_id: str) -> int:
    """Delete the winners of an import, and those that wait to be raced; gives how many were in use."""
    session.execute(delete(ImportedBestRow).where(ImportedBestRow.import_id == import_id))
    count = _remove_winners(session, BestConfigRow.import_id == import_id)
    _unpin_naming(session, session.scalars(_free(import_id)).all())
    return count


def remove_best(session: Session, target: str, problem: GemmProblem) -> RecordCounts:
    """Take out the winners of a problem on a device class or an architecture, and that they were tuned again.
    The rows of a ladder around it answer between them no more. A pinned config set that serves the problem
    there is pinned no more.

    Raises:
        StoreError: there are none, and no pinned set serves the problem.
    """
    lock_results(session)
    there = or_(BestConfigRow.device_class == target, BestConfigRow.arch == target)
    problem_id = entities.find_problem(session, problem)
    this = there & (BestConfigRow.problem_id == problem_id)
    classes = session.scalars(select(BestConfigRow.device_class).where(this)).all()
    retuned = RetuneRow.device_class.in_(classes)
    session.execute(delete(RetuneRow).where(RetuneRow.problem_id == problem_id, retuned))
    count = _remove_winners(session, this)
    for device_class in classes:
        ladder_gaps.open_gap(session, device_class, problem)
    if not sets.unpin_serving(session, problem, target) and not count:
        raise StoreError(f"{problem} has no winner on {target}; 'tilewright best' lists those there are")
    return RecordCounts(best=count)


def remove_listed(session: Session, problem: GemmProblem, listed: Container[str]) -> RecordCounts:
    """Take out those of the listed jobs that are of a problem, or its rows of their ladders. Its other jobs,
    its winners and its misses stay, and so does the problem if there are any."""
    lock_results(session)
    problem_id = entities.find_problem(session, problem)
    if problem_id is None:
        return RecordCounts()
    found = session.scalars(select(JobRow.id).where(_is_of(problem_id)))
    named = [job_id for job_id in found if job_id in listed]
    trials = _remove_rows(session, problem_id, named)
    left = set(session.scalars(select(LadderRow.job_id).where(LadderRow.job_id.in_(named))))
    ids = [job_id for job_id in named if job_id not in left]
    trials += remove_jobs(session, ids)
    entities.remove_unnamed_problems(session, [problem_id])
    return RecordCounts(jobs=len(ids), trials=trials)


def remove_served(session: Session, problem: GemmProblem) -> int:
    """Take out the winners of a problem, those that wait to be raced, and its misses; gives how many winners
    were in use. The rows of a ladder around it answer between them no more. A pinned config set that serves
    the problem is pinned no more.

    Raises:
        InUse: a job of it waits or runs.
        StoreError: it has no results, and no pinned set serves it.
    """
    lock_results(session)
    problem_id = entities.find_problem(session, problem)
    for job_id, status in session.execute(select(JobRow.id, JobRow.status).where(_is_of(problem_id))):
        if not status.final:
            raise InUse(f"job {job_id} of {problem} is {status}; cancel it or wait for its end")
    for table in (MissRow, RetuneRow):
        session.execute(delete(table).where(table.problem_id == problem_id))
    # NOTE: not by SQL, which would fail for all of them if the JSON of one is damaged.
    staged = session.execute(select(ImportRow.id, ImportRow.staged).where(ImportRow.staged.is_not(None)))
    entering = [import_id for import_id, state in staged if "into" not in state]
    waiting = delete(ImportedBestRow).where(ImportedBestRow.problem_id == problem_id)
    session.execute(waiting.where(ImportedBestRow.import_id.not_in(entering)))
    this = BestConfigRow.problem_id == problem_id
    classes = session.scalars(select(BestConfigRow.device_class).where(this)).all()
    count = _remove_winners(session, this)
    for device_class in classes:
        ladder_gaps.open_gap(session, device_class, problem)
    if not sets.unpin_serving(session, problem) and problem_id is None:
        raise StoreError(
            f"{problem} has no results here; 'tilewright best' and 'tilewright jobs ls' list others"
        )
    return count


def jobs_of(session: Session, problem: GemmProblem) -> list[tuple[str, int | None]]:
    """The jobs that go with a problem, and of those that have other rows of their ladder left, the ``m`` of
    the row that goes."""
    problem_id = entities.find_problem(session, problem)
    of_job = LadderRow.job_id == JobRow.id
    others = select(LadderRow.m).where(of_job, LadderRow.problem_id != problem_id).exists()
    row = select(LadderRow.m).where(of_job, LadderRow.problem_id == problem_id).scalar_subquery()
    found = session.execute(select(JobRow.id, row, others).where(_is_of(problem_id)))
    return [(job_id, m if stays else None) for job_id, m, stays in found if m is not None or not stays]


def _is_of(problem_id: int | None) -> ColumnElement[bool]:
    """The condition that a job is of a problem, or a row of its ladder is, and no import brings it just
    now."""
    rows = select(LadderRow.job_id).where(LadderRow.problem_id == problem_id)
    return or_(JobRow.problem_id == problem_id, JobRow.id.in_(rows)) & has_entered()


def _remove_rows(session: Session, problem_id: int, ids: Sequence[str]) -> int:
    """Delete a problem from the ladders of jobs; gives how many trials these rows had."""
    count = 0
    query = select(LadderRow.job_id, LadderRow.m)
    query = query.where(LadderRow.problem_id == problem_id, LadderRow.job_id.in_(ids))
    for job_id, m in session.execute(query).all():
        gone = delete(TrialRow).where(TrialRow.job_id == job_id, TrialRow.m == m).returning(TrialRow.number)
        count += len(session.execute(gone, execution_options=_UNSYNCHRONIZED).all())
        session.execute(delete(LadderRow).where(LadderRow.job_id == job_id, LadderRow.m == m))
    return count


def remove_jobs(session: Session, ids: Sequence[str]) -> int:
    """Delete jobs with their trials and events; gives how many trials these were."""
    count = 0
    for job_id in ids:
        mine = BestConfigRow.job_id == job_id
        for device_class in session.scalars(select(BestConfigRow.device_class).where(mine).distinct()).all():
            sets.changed(session, device_class, mine)
        session.execute(update(BestConfigRow).where(mine).values(job_id=None))
        waiting = update(ImportedBestRow).where(ImportedBestRow.job_id == job_id)
        session.execute(waiting.values(job_id=None))
        for of_job in (EventRow, LadderRow, TrialSlotRow):
            session.execute(delete(of_job).where(of_job.job_id == job_id))
        gone = delete(TrialRow).where(TrialRow.job_id == job_id).returning(TrialRow.number)
        count += len(session.execute(gone, execution_options=_UNSYNCHRONIZED).all())
        session.execute(delete(JobRow).where(JobRow.id == job_id))
    _forget_joined(session, ids)
    return count


def _forget_joined(session: Session, ids: Sequence[str]) -> None:
    """Have imports on their way in forget which of their trials joined jobs that are deleted: another import
    may bring these jobs again, and its trials stay if they are taken back."""
    entering = select(ImportRow).where(ImportRow.staged.is_not(None)).order_by(ImportRow.id)
    for row in session.scalars(entering.with_for_update()):
        if isinstance(row.staged, dict) and isinstance(joined := row.staged.get("joined"), list):
            row.staged = row.staged | {"joined": [one for one in joined if one[0] not in ids]}


def _remove_winners(session: Session, which: ColumnElement[bool]) -> int:
    """Delete winners, and see to it that no set that is served names them."""
    gone = delete(BestConfigRow).where(which).returning(BestConfigRow.device_class, BestConfigRow.artifact)
    found = session.execute(gone, execution_options=_UNSYNCHRONIZED).all()
    kernels = defaultdict[str, set[str]](set)
    for device_class, artifact in found:
        kernels[device_class].add(artifact)
    for device_class, digests in kernels.items():
        sets.changed(session, device_class, false())
        sets.unpin_naming(session, device_class, digests)
    return len(found)


def remove_kernels(session: Session, import_id: str, most: int | None = None) -> int:
    """Delete kernels of an import that no winner needs, nor will that of another on its way in; gives how
    many."""
    free = _free(import_id).limit(most)
    gone = delete(ArtifactRow).where(ArtifactRow.digest.in_(free)).returning(ArtifactRow.digest)
    digests = session.scalars(gone, execution_options=_UNSYNCHRONIZED).all()
    _unpin_naming(session, digests)  # one may have been pinned since the winners went
    return len(digests)


def _free(import_id: str) -> Select[str]:
    """The kernels of an import that no winner needs, nor will that of another on its way in."""
    needed = or_(*(one.exists() for one in _needing()))
    return select(ArtifactRow.digest).where(ArtifactRow.import_id == import_id, ~needed)


def _unpin_naming(session: Session, kernels: Sequence[str]) -> None:
    """See to it that no pinned set names these kernels; a winner that was raced here since may have taken the
    place of theirs."""
    pinned = select(ServedSetRow.device_class).where(ServedSetRow.pinned_id.is_not(None))
    for device_class in session.scalars(pinned).all() if kernels else ():
        sets.unpin_naming(session, device_class, kernels)


def hand_on_kernels(session: Session, import_id: str, to: str | ColumnElement[Any]) -> None:
    """Let the kernels of an import be those of another."""
    kernels = update(ArtifactRow).where(ArtifactRow.import_id == import_id).values(import_id=to)
    session.execute(kernels, execution_options=_UNSYNCHRONIZED)


def _needing() -> tuple[Select[Any], Select[Any]]:
    """The imports of winners that need a kernel, and those on their way in whose winners will."""
    entering = select(ImportRow.id).where(ImportRow.staged.is_not(None), ImportRow.trusted)
    served = select(BestConfigRow.import_id).where(BestConfigRow.artifact == ArtifactRow.digest)
    coming = select(ImportedBestRow.import_id).where(
        ImportedBestRow.artifact == ArtifactRow.digest,
        ImportedBestRow.import_id != ArtifactRow.import_id,
        ImportedBestRow.import_id.in_(entering),
    )
    return served.limit(1), coming.limit(1)
