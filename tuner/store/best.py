"""The winners: one for each problem and device class.

``target`` is an arch (``sm_90``: every class of it) or the id of one device class.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.orm import Session

from tilewright.artifact import Resources
from tilewright.config import Config
from tilewright.problem import GemmProblem
from tilewright.trial import Baseline, BestConfig, Provenance
from tuner.store import artifacts, codec, problems
from tuner.store.errors import StoreError
from tuner.store.models import BestConfigRow, ProblemRow
from tuner.store.records import StoredBest, utc_now
from tuner.store.upsert import insert_or_update

_IDENTITY = ("device_class", "problem_id")
_SAME = ("dtype", "layout", "batch", "out_dtype", "acc_dtype", "activation", "has_bias", "has_c")


def put(session: Session, best: BestConfig) -> bool:
    """Keep the winner of a race in place of that of an earlier one; True where it was kept.

    An earlier winner stays where it was raced under the same driver by the same method and its lead over
    the vendor is above this one's beyond both intervals: a job over fewer families or trials must not
    take a better kernel away.

    Raises:
        StoreError: its artifact is not kept, so that nobody could launch it.
    """
    if not artifacts.has(session, best.artifact):
        raise StoreError(f"artifact {best.artifact} of the best config is not stored; store it first")
    if any(_outdoes(stored.best, best) for stored in exact(session, best.device_class, best.problem)):
        return False
    insert_or_update(session, BestConfigRow, _values(session, best), _IDENTITY)
    return True


def _outdoes(earlier: BestConfig, later: BestConfig) -> bool:
    was, now = earlier.provenance, later.provenance
    comparable = (was.driver, was.method) == (now.driver, now.method)
    return comparable and earlier.speedup_low > later.speedup_high


def exact(session: Session, target: str, problem: GemmProblem) -> list[StoredBest]:
    """Winners for this very problem, the latest first; at most one for a device class."""
    query = _query(target).where(ProblemRow.canonical == codec.canonical(problem.to_dict()))
    return _records(session, query.order_by(BestConfigRow.created.desc(), BestConfigRow.id))


def for_arch(session: Session, target: str, limit: int | None = None, after: int = 0) -> list[StoredBest]:
    """All winners, by id, from the one that follows the id ``after``."""
    query = _query(target).where(BestConfigRow.id > after)
    return _records(session, query.order_by(BestConfigRow.id).limit(limit))


def nearest(session: Session, target: str, problem: GemmProblem, limit: int = 5) -> list[StoredBest]:
    """Winners for problems that differ in m, n and k at most, by distance in (log2 m, log2 n, log2 k).

    The problem itself, where it has a winner, comes first.
    """
    order = (_distance(problem), BestConfigRow.id)
    alike = (getattr(ProblemRow, name) == value for name, value in _signature(problem))
    # NOTE: ids first, so that the samples of every candidate are not carried through the sort.
    near = _query(target).with_only_columns(BestConfigRow.id).where(*alike).order_by(*order).limit(limit)
    return _records(session, _query(target).where(BestConfigRow.id.in_(near)).order_by(*order))


def _query(target: str) -> Select[BestConfigRow, str]:
    query = select(BestConfigRow, ProblemRow.canonical).join(
        ProblemRow, ProblemRow.id == BestConfigRow.problem_id
    )
    return query.where(or_(BestConfigRow.device_class == target, BestConfigRow.arch == target))


def _signature(problem: GemmProblem) -> list[tuple[str, Any]]:
    data = problem.to_dict()
    return [(name, data[name]) for name in _SAME]


def _distance(problem: GemmProblem) -> ColumnElement[float]:
    m = ProblemRow.log2_m - math.log2(problem.m)
    n = ProblemRow.log2_n - math.log2(problem.n)
    k = ProblemRow.log2_k - math.log2(problem.k)
    return m * m + n * n + k * k


def _records(session: Session, query: Select[BestConfigRow, str]) -> list[StoredBest]:
    return [StoredBest(row.id, _best(row, problem), row.created) for row, problem in session.execute(query)]


def _values(session: Session, best: BestConfig) -> dict[str, Any]:
    return {
        "device_class": best.device_class,
        "arch": best.arch,
        "problem_id": problems.ensure(session, best.problem),
        "job_id": best.job_id or None,
        "artifact": best.artifact,
        "config": best.config.to_dict(),
        "timing": dataclasses.asdict(best.timing),
        "ties": [config.to_dict() for config in best.ties],
        "baseline": dataclasses.asdict(best.baseline),
        "speedup": best.speedup,
        "speedup_low": best.speedup_low,
        "speedup_high": best.speedup_high,
        "confidence": best.confidence,
        "provenance": dataclasses.asdict(best.provenance),
        "resources": dataclasses.asdict(best.resources),
        "created": utc_now(),
    }


def _best(row: BestConfigRow, problem: str) -> BestConfig:
    return BestConfig(
        problem=problems.parse(problem),
        device_class=row.device_class,
        arch=row.arch,
        config=Config.from_dict(row.config),
        artifact=row.artifact,
        timing=codec.timing(row.timing),
        ties=tuple(Config.from_dict(config) for config in row.ties),
        baseline=Baseline(**row.baseline),
        speedup=row.speedup,
        speedup_low=row.speedup_low,
        speedup_high=row.speedup_high,
        confidence=row.confidence,
        provenance=Provenance(**row.provenance),
        resources=Resources(**row.resources),
        job_id=row.job_id or "",
    )
