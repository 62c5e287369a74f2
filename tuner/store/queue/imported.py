"""Winners of imports that wait to be built and raced here."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select, update
from sqlalchemy.orm import Session

from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import GemmProblem
from tuner.store import entities, misses, records
from tuner.store.imports import has_entered
from tuner.store.models import ImportedBestRow, JobRow, ProblemRow
from tuner.store.records import RowReader, WaitingBest, utc_now


def waiting(session: Session, device_class: str, problem: GemmProblem, limit: int) -> list[Config]:
    """Imported configs for one problem that wait to be raced here, those with the highest claimed speed-up
    first."""
    query = select(ImportedBestRow.config).where(
        ImportedBestRow.device_class == device_class,
        ImportedBestRow.problem_id == entities.find_problem(session, problem),
        has_entered(ImportedBestRow.import_id),
    )
    query = query.order_by(ImportedBestRow.speedup.desc(), ImportedBestRow.id).limit(limit)
    return [Config.from_dict(config) for config in session.scalars(query)]


def waits(session: Session, import_id: str, limit: int) -> list[WaitingBest]:
    """Winners of an import that wait to be built and raced here, those with the highest claimed speed-up
    first."""
    query = _imported().where(ImportedBestRow.import_id == import_id)
    query = query.order_by(ImportedBestRow.speedup.desc(), ImportedBestRow.id).limit(limit)
    return _WAITING.readable(session.execute(query))


def waiting_problem(session: Session, device_class: str) -> GemmProblem | None:
    """The problem whose waiting config claims the highest speed-up; None if no config waits, or all were
    taken up. A problem whose job settled nothing is raced again a day later."""
    row = ImportedBestRow
    query = _imported().where(row.device_class == device_class, _untaken(), has_entered(row.import_id))
    query = query.order_by(row.speedup.desc(), row.id)
    found = _WAITING.page(session, query, 1, _behind)
    return found[0].best.problem if found else None


def _behind(last: ImportedBestRow, _problem: str) -> ColumnElement[bool]:
    row = ImportedBestRow
    return or_(row.speedup < last.speedup, and_(row.speedup == last.speedup, row.id > last.id))


def take_waiting(session: Session, device_class: str, problem: GemmProblem) -> bool:
    """Take up the waiting configs of a problem; False if another device was faster."""
    mine = update(ImportedBestRow).where(
        ImportedBestRow.device_class == device_class,
        ImportedBestRow.problem_id == entities.find_problem(session, problem),
        _untaken(),
        has_entered(ImportedBestRow.import_id),
    )
    return session.execute(mine.values(queued=utc_now()).returning(ImportedBestRow.id)).first() is not None


def _untaken() -> ColumnElement[bool]:
    """Whether no device has taken up a waiting config, or the job for it ended more than a day ago and
    left it waiting."""
    job = exists().where(
        JobRow.device_class == ImportedBestRow.device_class,
        JobRow.problem_id == ImportedBestRow.problem_id,
        JobRow.status.in_((JobStatus.FAILED, JobStatus.SUCCEEDED)),
        JobRow.created >= ImportedBestRow.queued,
        JobRow.finished < utc_now() - misses.AFTER_FAILURE,
    )
    return or_(ImportedBestRow.queued.is_(None), job)


def _imported() -> Select[ImportedBestRow, str]:
    same = ProblemRow.id == ImportedBestRow.problem_id
    return select(ImportedBestRow, ProblemRow.canonical).join(ProblemRow, same)


_WAITING = RowReader(
    "imported winner",
    lambda row, _: row.id,
    lambda row, text: WaitingBest(row.id, records.winner(row, text), row.queued),
)
