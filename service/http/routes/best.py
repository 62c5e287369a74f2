"""``/best-config``: one winner by problem, all of an architecture, or what to run for many problems."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Query, Request, Response

from service.errors import Kind, Refusal
from service.http import conditional
from service.http.conditional import link_next
from service.http.deps import IfNoneMatch, Service, ServiceDep
from service.http.openapi import errors
from service.http.views import best_view, number_place, page_end, tune_hint
from service.results import lookups
from tilewright import wire
from tilewright.schema.problem import GemmProblem
from tuner.store import best
from tuner.store.records import StoredBest

router = APIRouter(tags=["results"])
_FOR_ONE = {"match", "max_regret"}

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
        response = conditional.answer(page, if_none_match)
        link_next(request, response, page.next)
        return response
    try:
        found, view = _one(service, query, problem)
    except Refusal:
        lookups.count(service, "none", None, query.device_class or query.arch or "")
        raise
    lookups.count(service, view.match.kind, view.device_class, regret=view.expected_regret)
    if view.staleness != "fresh":
        later.add_task(service.stale.served, [found])
    return conditional.answer(view, if_none_match)


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
    service: Service, query: wire.BestQuery, problem: GemmProblem
) -> tuple[StoredBest, wire.BestConfigView]:
    """The stored winner that the one selection names; a winner that lost to the vendor says so itself.

    Raises:
        Refusal: nothing answers within what the query allows.
    """
    target = query.device_class or query.arch or ""
    allowed = lookups.limits(query.match, query.max_regret, query.deterministic)
    selection = lookups.select(service, target, problem, allowed)
    result, entry = selection.result, selection.result.entry
    if entry is None or (query.deterministic and not entry.deterministic):
        further = "" if query.match is wire.Match.NEAREST else ", or ask with match=nearest"
        raise _not_tuned(target, problem, f": {result.reason}", further)
    with service.store.read() as session:
        [found, *_] = best.exact(session, selection.device_class or target, entry.problem)
    kind = "nearest" if result.kind == "nearest" else "exact"
    match = wire.MatchView(kind=kind, distance=result.distance)
    view = best_view(found, service.quality.view(found.best), match)
    regret = result.expected_regret if kind == "nearest" else None
    return found, view.model_copy(update={"expected_regret": regret})


def _listing(service: Service, query: wire.BestQuery) -> wire.BestConfigList:
    given = query.model_fields_set
    if senseless := sorted(given & _FOR_ONE):
        detail = f"{' and '.join(senseless)}: for one problem only; give m, n and k too, or leave it out"
        raise Refusal(Kind.INVALID_REQUEST, detail)
    target, after = query.device_class or query.arch or "", number_place(query.cursor)
    alike = {name: getattr(query, name) for name in best.SIGNATURE if name in given}
    with service.store.read() as session:
        found = best.for_arch(
            session, target, query.limit, after, alike=alike, repeatable=query.deterministic
        )
    following = page_end(len(found), query.limit, found[-1].id if found else None)
    items = [best_view(stored, service.quality.view(stored.best)) for stored in found]
    return wire.BestConfigList(items=items, next=following)


def _not_tuned(target: str, problem: GemmProblem, reason: str, further: str) -> Refusal:
    detail = (
        f"{problem} has no answer on {target}{reason}. POST the member 'tune' of this answer to /tune "
        f"on a service with such a device{further}"
    )
    return Refusal(Kind.NOT_TUNED, detail, members={"tune": tune_hint(problem)})
