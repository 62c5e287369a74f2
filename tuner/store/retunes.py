"""Stale winners to be tuned again: once for each state of services, whatever becomes of it.

Services that share a database may differ in release, compiler or driver; what one of them measured is stale
to the others. Each tunes a problem again once for its own state, so that they do not take turns for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, and_, delete, update
from sqlalchemy.orm import Session

from tilewright.problem import GemmProblem
from tuner.store import codec, misses, problems
from tuner.store.models import MissRow, ProblemRow, RetuneRow
from tuner.store.records import utc_now
from tuner.store.upsert import insert_new


def ask(session: Session, device_class: str, found: Iterable[GemmProblem], wanted: str) -> None:
    """Have problems tuned again by a service in the state ``wanted``, unless one was at it before."""
    for problem in found:
        identity = {"device_class": device_class, "problem_id": problems.ensure(session, problem)}
        insert_new(session, RetuneRow, {**identity, "wanted": wanted})


def top(session: Session, device_class: str, wanted: str) -> GemmProblem | None:
    """The problem that was asked for with the largest stake; None where each was tuned again already, or is
    being tuned for any other reason."""
    mine = and_(RetuneRow.device_class == MissRow.device_class, RetuneRow.problem_id == MissRow.problem_id)
    query = misses.open_stale(device_class).join(RetuneRow, mine)
    query = query.where(RetuneRow.wanted == wanted, RetuneRow.queued.is_(None)).limit(1)
    found = session.scalars(query.with_only_columns(ProblemRow.canonical)).one_or_none()
    return codec.maybe(problems.parse, found)


def take(session: Session, device_class: str, problem: GemmProblem, wanted: str) -> bool:
    """Take a problem up, for good; False where another device was faster."""
    this = _this(session, device_class, problem, wanted)
    taken = update(RetuneRow).where(this, RetuneRow.queued.is_(None)).values(queued=utc_now())
    return session.execute(taken.returning(RetuneRow.wanted)).first() is not None


def withdraw(session: Session, device_class: str, problem: GemmProblem, wanted: str) -> None:
    """Forget that a problem was asked for, until it is asked for again."""
    session.execute(delete(RetuneRow).where(_this(session, device_class, problem, wanted)))


def _this(session: Session, device_class: str, problem: GemmProblem, wanted: str) -> ColumnElement[bool]:
    return and_(
        RetuneRow.device_class == device_class,
        RetuneRow.problem_id == problems.find(session, problem),
        RetuneRow.wanted == wanted,
    )
