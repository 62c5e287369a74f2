"""The winners: one for each problem and device class.

``target`` is an arch (``sm_90``: every class of it) or the id of one device class.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Select, Text, bindparam, cast, func, or_, select
from sqlalchemy.orm import Session

from tilewright.schema.codec import decode
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Provenance
from tuner.store import entities, exchange, records, sets
from tuner.store.database import StoreError, insert_or_update
from tuner.store.models import ArtifactRow, BestConfigRow, ProblemRow
from tuner.store.records import StoredBest, utc_now

Judge = Callable[[BestConfig], bool]
_IDENTITY = ("device_class", "problem_id")
SIGNATURE = ("dtype", "layout", "batch", "out_dtype", "acc_dtype", "activation", "has_bias", "has_c")


def put(session: Session, best: BestConfig, is_current: Judge = lambda _best: True) -> bool:
    """Keep the winner of a race in place of that of an earlier one; True where it was kept.

    An earlier winner stays where it was raced under the same driver by the same method and its lead over
    the vendor is above this one's beyond both intervals: a job over fewer families or trials must not
    take a better kernel away. One that is not current, that sources or compilers of today would not make,
    does not stay: it would be stale for ever.

    Raises:
        StoreError: its artifact is not kept, so that nobody could launch it.
    """
    _launchable(session, best)
    earlier = [stored.best for stored in exact(session, best.device_class, best.problem)]
    if any(_outdoes(was, best) and is_current(was) for was in earlier):
        return False
    _replace(session, best, utc_now())
    return True


def merge(session: Session, best: BestConfig, created: datetime) -> bool:
    """Keep the winner of a race that another store ran where it is decidedly better than the one here, or
    later and not decidedly worse; so two stores that merge each other's end with the same winner.

    Raises:
        StoreError: its artifact is not kept.
    """
    _launchable(session, best)
    best = exchange.current_best(best)
    for stored in exact(session, best.device_class, best.problem):
        older = stored.created >= created and not _outdoes(best, stored.best)
        if older or _outdoes(stored.best, best):
            return False
    _replace(session, best, created)
    return True


def _launchable(session: Session, best: BestConfig) -> None:
    if not entities.has_artifact(session, best.artifact):
        raise StoreError(f"artifact {best.artifact} of the best config is not stored; store it first")


def _replace(session: Session, best: BestConfig, created: datetime) -> None:
    insert_or_update(session, BestConfigRow, _values(session, best) | {"created": created}, _IDENTITY)
    sets.changed(session, best.device_class)


def _outdoes(earlier: BestConfig, later: BestConfig) -> bool:
    was, now = earlier.provenance, later.provenance
    comparable = (was.driver, was.method) == (now.driver, now.method)
    return comparable and earlier.speedup_low > later.speedup_high


def exact(session: Session, target: str, problem: GemmProblem) -> list[StoredBest]:
    """Winners for this very problem, the latest first; at most one for a device class."""
    problem_id = entities.find_problem(session, problem)
    if problem_id is None:
        return []
    found = session.execute(_exact(), {"target": target, "problem_id": problem_id})
    return [StoredBest(row.id, _best(row, canonical), row.created) for row, canonical in found]


def for_arch(
    session: Session,
    target: str,
    limit: int | None = None,
    after: int = 0,
    *,
    alike: Mapping[str, Any] | None = None,
    repeatable: bool = False,
) -> list[StoredBest]:
    """All winners, by id, from the one that follows the id ``after``.

    ``alike`` has those values of :data:`SIGNATURE` that their problems must have; ``repeatable`` leaves out
    kernels that were not seen to repeat bit by bit.
    """
    query = _query(target).where(BestConfigRow.id > after, *_alike(alike or {}))
    query = query.where(BestConfigRow.repeatable.is_(True)) if repeatable else query
    return _records(session, query.order_by(BestConfigRow.id).limit(limit))


def listing(
    session: Session, device_class: str | None, since: datetime | None, limit: int, after: int = 0
) -> list[StoredBest]:
    """Winners of a device class or of all, found ``since`` then, by id from the one after ``after``."""
    query = _all().where(BestConfigRow.id > after)
    query = query if device_class is None else query.where(BestConfigRow.device_class == device_class)
    query = query if since is None else query.where(BestConfigRow.created >= since)
    return _records(session, query.order_by(BestConfigRow.id).limit(limit))


def nearest(session: Session, target: str, problem: GemmProblem, limit: int = 5) -> list[StoredBest]:
    """Winners for problems that differ in m, n and k at most, by distance in (log2 m, log2 n, log2 k).

    For initial configs of a search: what answers a lookup is selected from config sets
    (:class:`tilewright.config_sets.lookup.Catalog`). The problem itself comes first if it has a winner.
    """
    order = (_distance(problem), BestConfigRow.id)
    alike = _alike(dict(zip(SIGNATURE, signature(problem), strict=True)))
    # NOTE: ids first, so that the samples of every candidate are not carried through the sort.
    near = _query(target).with_only_columns(BestConfigRow.id).where(*alike).order_by(*order).limit(limit)
    return _records(session, _query(target).where(BestConfigRow.id.in_(near)).order_by(*order))


def signature(problem: GemmProblem) -> tuple[Any, ...]:
    """Everything of a problem but m, n and k: results of one signature may answer for each other."""
    data = problem.to_dict()
    return tuple(data[name] for name in SIGNATURE)


def classes(session: Session, target: str) -> list[str]:
    """The device classes of a target that have a winner, by name."""
    there = or_(BestConfigRow.device_class == target, BestConfigRow.arch == target)
    query = select(BestConfigRow.device_class).where(there).distinct()
    return list(session.scalars(query.order_by(BestConfigRow.device_class)))


def origins(session: Session) -> list[tuple[str, Provenance, int]]:
    """Families and provenances of all winners, and how many winners share them."""
    family, was = BestConfigRow.config["family"].as_string(), cast(BestConfigRow.provenance, Text)
    each = select(family.label("family"), was.label("was")).subquery()
    rows = session.execute(
        select(each.c.family, each.c.was, func.count()).group_by(each.c.family, each.c.was)
    )
    return [(name, decode(Provenance, json.loads(text)), number) for name, text, number in rows]


def artifact_sizes(session: Session, device_class: str) -> dict[str, int]:
    """Bytes of each artifact that a winner of a device class needs, by digest."""
    query = select(ArtifactRow.digest, func.length(ArtifactRow.data)).where(
        ArtifactRow.digest.in_(
            select(BestConfigRow.artifact).where(BestConfigRow.device_class == device_class)
        )
    )
    return {row.digest: row[1] for row in session.execute(query)}


def _all() -> Select[BestConfigRow, str]:
    return select(BestConfigRow, ProblemRow.canonical).join(
        ProblemRow, ProblemRow.id == BestConfigRow.problem_id
    )


@functools.cache
def _exact() -> Select[BestConfigRow, str]:
    # NOTE: built once: building it anew costs more than SQLite takes to answer it.
    target: BindParameter[str] = bindparam("target")
    there = or_(BestConfigRow.device_class == target, BestConfigRow.arch == target)
    query = _all().where(there, BestConfigRow.problem_id == bindparam("problem_id"))
    return query.order_by(BestConfigRow.created.desc(), BestConfigRow.id)


def _query(target: str) -> Select[BestConfigRow, str]:
    return _all().where(or_(BestConfigRow.device_class == target, BestConfigRow.arch == target))


def _alike(values: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    return [getattr(ProblemRow, name) == value for name, value in values.items()]


def _distance(problem: GemmProblem) -> ColumnElement[float]:
    m = ProblemRow.log2_m - math.log2(problem.m)
    n = ProblemRow.log2_n - math.log2(problem.n)
    k = ProblemRow.log2_k - math.log2(problem.k)
    return m * m + n * n + k * k


def _records(session: Session, query: Select[BestConfigRow, str]) -> list[StoredBest]:
    return [StoredBest(row.id, _best(row, problem), row.created) for row, problem in session.execute(query)]


def _values(session: Session, best: BestConfig) -> dict[str, Any]:
    problem_id = entities.ensure_problem(session, best.problem)
    return records.row_values(BestConfigRow, best, problem_id=problem_id, job_id=best.job_id or None)


def _best(row: BestConfigRow, problem: str) -> BestConfig:
    return records.of_row(BestConfig, row, problem=json.loads(problem), job_id=row.job_id or "")
