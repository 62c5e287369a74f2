"""Winners of imports that wait to be built and raced here."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import ColumnElement, Select, and_, exists, or_, select, update
from sqlalchemy.orm import Session

from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tuner.store import entities, misses, records
from tuner.store.imports import has_entered
from tuner.store.models import ImportedBestRow, JobRow, LadderRow, ProblemRow
from tuner.store.records import RowReader, WaitingBest, utc_now

_AT_ONCE = 100


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


def waiting_problem(
    session: Session,
    device_class: str,
    possible: Callable[[GemmProblem], bool] = lambda _: True,
    refused: set[str] | None = None,
) -> GemmProblem | None:
    """The ``possible`` problem whose waiting config claims the highest speed-up; None if no config waits, or
    all were taken up. A problem whose job settled nothing is raced again a day later.

    ``refused`` keeps the texts of those that are not possible, for the next call: 10,000 of them that have to
    be read again take seconds.
    """
    refused, row = set() if refused is None else refused, ImportedBestRow
    query = _imported().where(row.device_class == device_class, _untaken(), has_entered(row.import_id))
    texts = query.order_by(row.speedup.desc(), row.id).with_only_columns(row.id, ProblemRow.canonical)
    with session.execute(texts, execution_options={"yield_per": _AT_ONCE}) as rows:
        for row_id, text in rows:
            if text in refused:
                continue
            for found in _WAITING.readable(session.execute(_imported().where(row.id == row_id))):
                if possible(found.best.problem):
                    return found.best.problem
                refused.add(text)
    return None


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
    """Whether no device has taken up a waiting config, or one did more than a day ago and no job was at its
    problem, or at a ladder with it, in the last day: however the one for it ended, it settled nothing."""
    ago = utc_now() - misses.AFTER_FAILURE
    job = exists().where(
        JobRow.device_class == ImportedBestRow.device_class,
        JobRow.import_id.is_(None),
        or_(JobRow.finished.is_(None), JobRow.finished >= ago),
    )
    alone = job.where(JobRow.problem_id == ImportedBestRow.problem_id)
    row = job.where(LadderRow.job_id == JobRow.id, LadderRow.problem_id == ImportedBestRow.problem_id)
    return or_(ImportedBestRow.queued.is_(None), and_(ImportedBestRow.queued < ago, ~alone, ~row))


def _imported() -> Select[ImportedBestRow, str]:
    same = ProblemRow.id == ImportedBestRow.problem_id
    return select(ImportedBestRow, ProblemRow.canonical).join(ProblemRow, same)


_WAITING = RowReader(
    "imported winner",
    lambda row, _: row.id,
    lambda row, text: WaitingBest(row.id, records.winner(row, text), row.queued),
)
