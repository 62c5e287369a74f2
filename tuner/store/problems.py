"""Problems: each kept once, by its canonical JSON."""

from __future__ import annotations

import json
import math

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from tilewright.problem import GemmProblem
from tuner.store.codec import canonical
from tuner.store.models import ProblemRow
from tuner.store.upsert import insert_new

# NOTE: built once: building a statement anew costs more than SQLite takes to answer it.
_ID = select(ProblemRow.id).where(ProblemRow.canonical == bindparam("canonical"))


def ensure(session: Session, problem: GemmProblem) -> int:
    """The id of a problem, which is kept where it was not."""
    found = find(session, problem)
    if found is not None:
        return found
    logs = {f"log2_{name}": math.log2(getattr(problem, name)) for name in ("m", "n", "k")}
    data = problem.to_dict()
    text = canonical(data)
    insert_new(session, ProblemRow, {**data, **logs, "canonical": text})
    return session.scalars(_ID, {"canonical": text}).one()


def find(session: Session, problem: GemmProblem) -> int | None:
    """The id of a problem, None where it was never seen."""
    return session.scalars(_ID, {"canonical": canonical(problem.to_dict())}).one_or_none()


def parse(text: str) -> GemmProblem:
    """The problem of a canonical text."""
    return GemmProblem.from_dict(json.loads(text))
