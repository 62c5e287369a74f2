"""Configs worth a first try: what won for near problems, here and on other devices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.config import Config
from tilewright.problem import GemmProblem
from tuner.store.best import nearest
from tuner.store.models import BestConfigRow, ProblemRow

HERE = 3
ELSEWHERE = 8
_ALIKE = ("dtype", "layout", "acc_dtype")


def first_tries(session: Session, device_class: str, problem: GemmProblem) -> list[Config]:
    """The winners of the nearest problems on this device class, then those of other ones with what tied
    with them; each once.

    What wins on one device is a good start on another, seldom the winner there.
    """
    here = [stored.best.config for stored in nearest(session, device_class, problem, HERE)]
    return list(dict.fromkeys([*here, *list(_elsewhere(session, device_class, problem))[:ELSEWHERE]]))


def _elsewhere(session: Session, device_class: str, problem: GemmProblem) -> Iterator[Config]:
    near = (
        (ProblemRow.log2_m - math.log2(problem.m)) * (ProblemRow.log2_m - math.log2(problem.m))
        + (ProblemRow.log2_n - math.log2(problem.n)) * (ProblemRow.log2_n - math.log2(problem.n))
        + (ProblemRow.log2_k - math.log2(problem.k)) * (ProblemRow.log2_k - math.log2(problem.k))
    )
    query = (
        select(BestConfigRow.config, BestConfigRow.ties)
        .join(ProblemRow, ProblemRow.id == BestConfigRow.problem_id)
        .where(BestConfigRow.device_class != device_class)
        .where(*(getattr(ProblemRow, name) == problem.to_dict()[name] for name in _ALIKE))
        .order_by(near, BestConfigRow.id)
        .limit(ELSEWHERE)
    )
    for config, ties in session.execute(query):
        yield from (Config.from_dict(one) for one in (config, *ties))
