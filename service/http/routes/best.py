"""``/best-config``: one winner by problem, all of an architecture, or what to run for many problems."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.background import BackgroundTask

from service.engine.retune import StaleResult
from service.errors import Kind, Refusal
from service.http import access, conditional
from service.http.deps import IfNoneMatch, Service, ServiceDep, check_plain
from service.http.openapi import errors
from service.http.views import link_next, number_place, page_end, tune_hint
from service.results.answer_cache import Answer
from service.results.explaining import device_of, explained
from service.results.served import Selection
from service.web.results import report
from tilewright import wire
from tilewright.errors import InvalidProblem
from tilewright.http.calls import JSON
from tilewright.schema.codec import gathered
from tilewright.schema.problem import GemmProblem, variants
from tuner.store import best
from tuner.store.database import WritersBusy
from tuner.store.records import StoredBest
from tuner.store.reports import winners


class _RememberingRoute(APIRoute):
    """Answers from memory what it can, and reads the query of most callers itself: FastAPI takes as long for
    that as the store for its answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of requests that are let in or refused as those of any other route."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            service: Service = request.app.state.service
            text = request.scope["query_string"]
            if found := service.answer_cache.known(text):
                await access.authorize(request)
            elif asked := _read(text):
                await access.authorize(request)
                await check_plain(request)
                found = await run_in_threadpool(_find, service, *asked, text)
            else:
                return await handle(request)
            return _sent(service, found, request.headers.get("if-none-match"))

        return answer


router = APIRouter(tags=["results"], route_class=_RememberingRoute)
lookup_router = APIRouter(tags=["results"])
_FOR_ONE = {"match", "max_regret"}
_NEAR = ("ladder", "nearest")
log = logging.getLogger("tilewright.service")

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
    found = _find(service, query, problem, request.scope["query_string"])
    return _sent(service, found, if_none_match)


def _read(text: bytes) -> tuple[wire.BestQuery, GemmProblem] | None:
    """The query for one problem in a query string; None for any other, and for one that FastAPI refuses."""
    given = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    try:
        query = wire.BestQuery.model_validate(dict(given))
        problem = query.to_problem()
    except (ValidationError, InvalidProblem):
        return None
    is_plain = len(query.model_fields_set) == len(given)  # none twice
    return (query, problem) if problem is not None and is_plain else None


def _find(service: Service, query: wire.BestQuery, problem: GemmProblem, text: bytes) -> Answer:
    select = functools.partial(_select, service, query, problem)
    work = functools.partial(_answer, service, query, problem)
    return service.answer_cache.find(text, query.target, select, work)


def _sent(service: Service, found: Answer, if_none_match: str | None) -> Response:
    _count(service, found.match, found.device_class, regret=found.regret)
    stale = found.stale if found.stale and service.stale.is_due(found.stale) else None
    later = BackgroundTask(_note, service, stale) if stale else None
    headers = conditional.of(found.tag, conditional.ASK_FIRST)
    if conditional.has(if_none_match, found.tag):
        return Response(status_code=304, headers=headers, background=later)
    return Response(found.content, media_type=JSON, headers=headers, background=later)


def _note(service: Service, stale: StaleResult) -> None:
    """Note a stale result that was served; nothing tells the caller, who has the answer by then."""
    try:
        service.stale.served([stale])
    except (SQLAlchemyError, WritersBusy) as error:
        log.warning("%s is noted as stale when it is served again: %s", stale.problem, error)


def _select(service: Service, query: wire.BestQuery, problem: GemmProblem) -> Selection:
    [selection] = service.served.select(query.target, [problem], query.limits)
    return selection


def _answer(service: Service, query: wire.BestQuery, problem: GemmProblem, selection: Selection) -> Answer:
    """The stored winner that answers for a problem.

    Raises:
        Refusal: there is none.
    """
    winner = _stored(service, selection)
    if winner is None:
        _count(service, "none", None, query.target)
        raise _not_tuned(service, query, problem, _why_none(selection))
    near = selection.result if selection.result.kind in _NEAR else None
    return Answer.of(service.quality.best_view(winner, near), winner)


@lookup_router.post(
    "/best-config/lookup", operation_id="lookup_best_configs", responses=errors(Kind.INVALID_PROBLEM)
)
def post_lookup(body: wire.LookupBody, service: ServiceDep) -> wire.LookupAnswer:
    """What to run for each of many problems, in their order."""
    items = []
    for selection in service.served.select(body.target, _problems(body), body.limits):
        result, device_class = selection.result, selection.device_class
        kind = "none" if result.kind == "vendor" and result.miss else result.kind
        regret = result.expected_regret if kind in _NEAR else None
        _count(service, kind, device_class, body.target, regret)
        items.append(wire.LookupView(**gathered(wire.LookupView, result, selection)))
    return wire.LookupAnswer(items=items)


@lookup_router.get("/explain", operation_id="explain", responses=errors(Kind.NOT_TUNED, Kind.INVALID_PROBLEM))
def get_explanation(query: Annotated[wire.ExplainQuery, Query()], service: ServiceDep) -> wire.ExplainView:
    """Why the winner for a problem takes its time: what limits it, how it fills the device, what the next
    value of each knob would do, and the vendor library's choice beside it."""
    problem = query.to_problem()
    [selection] = service.served.select(query.target, [problem], query.limits)
    winner = _stored(service, selection)
    if winner is None:
        raise _not_tuned(service, query, problem, _why_none(selection))
    near = selection.result if selection.result.kind in _NEAR else None
    with service.store.read() as session:
        explanation = explained(session, winner)
    return wire.ExplainView(
        result=service.quality.best_view(winner, near),
        runs=selection.result.kind,
        reason=selection.result.reason,
        explanation=explanation,
    )


_AS_FILE = {
    "Content-Disposition": 'attachment; filename="tilewright-report.html"',
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


@lookup_router.get(
    "/report",
    operation_id="report",
    response_class=Response,
    responses={
        200: {"description": "One file", "content": {"text/html": {"schema": {"type": "string"}}}},
        **errors(Kind.NOT_FOUND, Kind.PAGES_BUSY),
    },
)
def get_report(query: Annotated[wire.ReportQuery, Query()], service: ServiceDep) -> Response:
    """The winners of a device class or of all, with plots, as one HTML file that opens without a server."""
    if query.device_class:
        _check_class(service, query.device_class)
    text = service.shared.get(("report", query.device_class), lambda: _report(service, query))
    return Response(text, media_type="text/html; charset=utf-8", headers=_AS_FILE)


def _check_class(service: Service, wanted: str) -> None:
    known = {queue.bench.spec.device_class.id for queue in service.engine.queues.values()}
    with service.store.read() as session:
        known |= set(winners.device_classes(session))
    if wanted not in known:
        there = ", ".join(sorted(known)) or "none yet"
        raise Refusal(Kind.NOT_FOUND, f"there is no device class {wanted}; use one of these: {there}")


def _report(service: Service, query: wire.ReportQuery) -> str:
    with service.store.read() as session:
        classes = [query.device_class] if query.device_class else winners.device_classes(session)
        found = winners.headlines(session, classes)
        devices = {name: spec for name in classes if (spec := device_of(session, name))}
    title = f"Results of {query.device_class}" if query.device_class else "Results of all device classes"
    return report(found, devices, title)


def _stored(service: Service, selection: Selection) -> StoredBest | None:
    """The stored winner that a selection names, also one that lost to the vendor library; None where it was
    deleted, or another kernel took its place while a set that names it is pinned."""
    entry, device_class = selection.result.entry, selection.device_class
    if entry is None or device_class is None:
        return None
    with service.store.read() as session:
        found = next(iter(best.exact(session, device_class, entry.problem)), None)
    return None if found and selection.pinned and found.best.artifact != entry.artifact else found


def _why_none(selection: Selection) -> str:
    replaced = "the winner of the pinned set was replaced or deleted"
    return replaced if selection.result.entry else selection.result.reason


def _problems(body: wire.LookupBody) -> list[GemmProblem]:
    found = []
    for number, fields in enumerate(body.problems):
        try:
            found.append(fields.to_problem())
        except InvalidProblem as error:
            raise Refusal(Kind.INVALID_PROBLEM, f"#/problems/{number}: {error}") from error
    return found


def _count(
    service: Service, match: str, device_class: str | None, asked: str = "", regret: float | None = None
) -> None:
    """Tell the metrics of one lookup: whose result answered, else what was ``asked`` for."""
    here = {queue.bench.spec.arch for queue in service.engine.queues.values()}
    arch = (device_class or asked).partition("-")[0]
    # NOTE: callers may ask for anything, and no name that they made up may become a label.
    service.metrics.lookups.labels(match, arch if device_class or arch in here else "other").inc()
    if regret is not None:
        service.metrics.regret.observe(regret)


def _listing(service: Service, query: wire.BestQuery) -> wire.BestConfigList:
    given = query.model_fields_set
    if senseless := sorted(given & _FOR_ONE):
        detail = f"{' and '.join(senseless)}: for one problem only; give m, n and k too, or leave it out"
        raise Refusal(Kind.INVALID_REQUEST, detail)
    target, after = query.target, number_place(query.cursor)
    alike = {name: getattr(query, name) for name in best.SIGNATURE if name in given}
    with service.store.read() as session:
        found = best.for_arch(
            session, target, query.limit, after, alike=alike, repeatable=query.deterministic
        )
        archs = [] if found or after else best.archs(session)
    following = page_end(found, query.limit)
    items = [service.quality.best_view(stored) for stored in found]
    return wire.BestConfigList(items=items, archs=archs, next=following)


def _not_tuned(
    service: Service, query: wire.BestQuery | wire.ExplainQuery, problem: GemmProblem, reason: str
) -> Refusal:
    with service.store.read() as session:
        others = best.tuned(session, query.target, variants(problem))
    there = f" Tuned there: {', '.join(map(str, others))}." if others else ""
    further = "" if query.match is wire.Match.NEAREST else ", or ask with match=nearest"
    detail = (
        f"{problem} has no answer on {query.target}: {reason}.{there} POST the member 'tune' of this answer "
        f"to /tune on a service with such a device{further}"
    )
    return Refusal(Kind.NOT_TUNED, detail, members={"tune": tune_hint(problem)})
