"""``/best-config``: one winner by problem, all of an architecture, or what to run for many problems."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Query, Request, Response
from sqlalchemy.orm import Session

from service import etag, lookups
from service.deps import IfNoneMatch, Service, ServiceDep
from service.openapi import errors
from service.paging import link_next
from service.problems import Kind, Problem
from service.views import best_view, number_place, page_end, tune_hint
from tilewright import wire
from tilewright.problem import GemmProblem
from tuner.store import best, regret
from tuner.store.records import StoredBest

router = APIRouter(tags=["results"])
_SEARCHED = 20  # near winners that are looked through for one that repeats
_FOR_ONE = {"policy", "max_regret"}

_FOUND: dict[int | str, dict[str, Any]] = {
    304: {"description": "The caller has it"},
    **errors(Kind.NOT_TUNED, Kind.INVALID_PROBLEM),
}


@router.get(
    "/best-config",
    operation_id="best_config",
    response_model=wire.BestConfigView | wire.BestConfigList,
    responses=_FOUND,
)
def get_best_config(
    query: Annotated[wire.BestQuery, Query()],
    service: ServiceDep,
    request: Request,
    later: BackgroundTasks,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The winner for m, n and k; without them a page of all winners of the architecture or device class, of
    those whose problems have the dtype, layout and so on that are given."""
    problem = query.to_problem()
    if problem is None:
        page = _listing(service, query)
        response = etag.answer(page, if_none_match)
        link_next(request, response, page.next)
        return response
    try:
        with service.store.read() as session:
            found, view = _one(service, session, query, problem)
    except Problem:
        lookups.count(service, "none", None, query.device_class or query.arch or "")
        raise
    lookups.count(service, view.match.kind, view.device_class, regret=view.expected_regret)
    if view.staleness != "fresh":
        later.add_task(service.stale.served, [found])
    return etag.answer(view, if_none_match)


@router.post(
    "/best-config/lookup", operation_id="lookup_best_configs", responses=errors(Kind.INVALID_PROBLEM)
)
def post_lookup(body: wire.LookupBody, service: ServiceDep, later: BackgroundTasks) -> wire.LookupAnswer:
    """What to run for each of many problems, in their order."""
    answer, stale = lookups.answers(service, body)
    asked = body.device_class or body.arch or ""
    for view in answer.items:
        kind = "none" if view.kind == "vendor" and view.miss else view.kind
        cost = view.expected_regret if kind == "nearest" else None
        lookups.count(service, kind, view.device_class, asked, cost)
    if stale:
        later.add_task(service.stale.served, stale)
    return answer


def _one(
    service: Service, session: Session, query: wire.BestQuery, problem: GemmProblem
) -> tuple[StoredBest, wire.BestConfigView]:
    target = query.device_class or query.arch or ""
    exact = _repeating(service, best.exact(session, target, problem), query)
    if exact:
        return exact[0], best_view(exact[0], service.trust.view(exact[0].best))
    if query.policy is wire.Policy.EXACT:
        raise _not_tuned(target, problem, ", or ask with policy=nearest")
    reach = _SEARCHED if query.deterministic else 1
    near = _repeating(service, best.nearest(session, target, problem, reach), query)
    if not near:
        raise _not_tuned(target, problem, "")
    view = _near_view(service, session, near[0], problem)
    _check_regret(view, query, problem)
    return near[0], view


def _repeating(service: Service, found: list[StoredBest], query: wire.BestQuery) -> list[StoredBest]:
    if not query.deterministic:
        return found
    return [stored for stored in found if service.trust.view(stored.best).deterministic]


def _near_view(
    service: Service, session: Session, found: StoredBest, problem: GemmProblem
) -> wire.BestConfigView:
    distance = regret.distance(found.best.problem, problem)
    view = best_view(found, service.trust.view(found.best), wire.MatchView(kind="nearest", distance=distance))
    expected = service.trust.expected_regret(session, found.best.device_class, distance)
    return view.model_copy(update={"expected_regret": expected})


def _check_regret(view: wire.BestConfigView, query: wire.BestQuery, problem: GemmProblem) -> None:
    """Refuse a near match that may cost more than the caller allows.

    Raises:
        Problem: it is expected to, or nobody knows.
    """
    allowed, expected = query.max_regret, view.expected_regret
    if allowed is None or (expected is not None and expected <= allowed):
        return
    cost = "of unknown cost" if expected is None else f"expected to cost {expected:.1%}"
    far = f"{view.match.distance:.2f} octaves away and {cost}"
    raise _not_tuned(view.device_class, problem, f"; the nearest match is {far}: over max_regret {allowed:g}")


def _listing(service: Service, query: wire.BestQuery) -> wire.BestConfigList:
    given = query.model_fields_set
    if senseless := sorted(given & _FOR_ONE):
        detail = f"{' and '.join(senseless)}: for one problem only; give m, n and k too, or leave it out"
        raise Problem(Kind.INVALID_REQUEST, detail)
    target, after = query.device_class or query.arch or "", number_place(query.cursor)
    alike = {name: getattr(query, name) for name in best.SIGNATURE if name in given}
    with service.store.read() as session:
        found = best.for_arch(
            session, target, query.limit, after, alike=alike, repeatable=query.deterministic
        )
    following = page_end(len(found), query.limit, found[-1].id if found else None)
    items = [best_view(stored, service.trust.view(stored.best)) for stored in found]
    return wire.BestConfigList(items=items, next=following)


def _not_tuned(target: str, problem: GemmProblem, further: str) -> Problem:
    detail = (
        f"{problem} was not tuned on {target}. POST the member 'tune' of this answer to /tune "
        f"on a service with such a device{further}"
    )
    return Problem(Kind.NOT_TUNED, detail, members={"tune": tune_hint(problem)})
