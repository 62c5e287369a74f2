"""Problems: each kept once, by its canonical JSON."""

from __future__ import annotations

import json
import math

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from tilewright.problem import GemmProblem
from tuner.store.codec import canonical
from tuner.store.models import ProblemRow
from tuner.store.upsert import insert_new


def ensure(session: Session, problem: GemmProblem) -> int:
    """The id of a problem, which is kept where it was not."""
    found = find(session, problem)
    if found is not None:
        return found
    logs = {f"log2_{name}": math.log2(getattr(problem, name)) for name in ("m", "n", "k")}
    data = problem.to_dict()
    insert_new(session, ProblemRow, {**data, **logs, "canonical": canonical(data)})
    return session.scalars(_id_of(problem)).one()


def find(session: Session, problem: GemmProblem) -> int | None:
    """The id of a problem, None where it was never seen."""
    return session.scalars(_id_of(problem)).one_or_none()


def parse(text: str) -> GemmProblem:
    """The problem of a canonical text."""
    return GemmProblem.from_dict(json.loads(text))


def _id_of(problem: GemmProblem) -> Select[int]:
    return select(ProblemRow.id).where(ProblemRow.canonical == canonical(problem.to_dict()))
