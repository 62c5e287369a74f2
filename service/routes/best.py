"""``GET /best-config``: one winner by problem, or all of an architecture."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from service.deps import Service, ServiceDep
from service.openapi import errors
from service.problems import Kind, Problem
from service.views import best_view, number_place, page_end, tune_hint
from tilewright import wire
from tilewright.problem import GemmProblem
from tuner.store import best
from tuner.store.records import StoredBest

router = APIRouter(tags=["results"])


@router.get(
    "/best-config", operation_id="best_config", responses=errors(Kind.NOT_TUNED, Kind.INVALID_PROBLEM)
)
def get_best_config(
    query: Annotated[wire.BestQuery, Query()], service: ServiceDep, response: Response
) -> wire.BestConfigView | wire.BestConfigList:
    """The winner for m, n and k; without them a page of all winners of the architecture or device class."""
    target = query.device_class or query.arch or ""
    problem = query.to_problem()
    if problem is None:
        return _listing(service, target, query, response)
    with service.store.read() as session:
        found = _one(session, target, problem, query.policy)
    if found is None:
        raise _not_tuned(target, problem, query.policy)
    return found


def _one(
    session: Session, target: str, problem: GemmProblem, policy: wire.Policy
) -> wire.BestConfigView | None:
    exact = best.exact(session, target, problem)
    if exact:
        return best_view(exact[0])
    near = best.nearest(session, target, problem, 1) if policy is wire.Policy.NEAREST else []
    return best_view(near[0], _nearest(near[0], problem)) if near else None


def _nearest(found: StoredBest, problem: GemmProblem) -> wire.MatchView:
    other = found.best.problem
    octaves = [math.log2(getattr(other, name) / getattr(problem, name)) for name in ("m", "n", "k")]
    return wire.MatchView(kind="nearest", distance=math.hypot(*octaves))


def _listing(service: Service, target: str, query: wire.BestQuery, response: Response) -> wire.BestConfigList:
    with service.store.read() as session:
        found = best.for_arch(session, target, query.limit, number_place(query.cursor))
    following = page_end(len(found), query.limit, found[-1].id if found else None)
    if following:
        name = "device_class" if query.device_class else "arch"
        link = f"</best-config?{name}={target}&cursor={following}&limit={query.limit}>"
        response.headers["Link"] = f'{link}; rel="next"'
    return wire.BestConfigList(items=[best_view(stored) for stored in found], next=following)


def _not_tuned(target: str, problem: GemmProblem, policy: wire.Policy) -> Problem:
    further = "" if policy is wire.Policy.NEAREST else ", or ask with policy=nearest"
    detail = (
        f"{problem} was not tuned on {target}. POST the member 'tune' of this answer to /tune "
        f"on a service with such a device{further}"
    )
    return Problem(Kind.NOT_TUNED, detail, members={"tune": tune_hint(problem)})
