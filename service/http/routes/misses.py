"""``/misses``: problems that clients ran without a tuned kernel."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.engine import admission
from service.errors import Kind, Refusal
from service.gemm import estimates
from service.http.deps import IdempotencyKey, ServiceDep, caller
from service.http.openapi import errors
from service.http.views import link_next, miss_place, page_end
from service.settings import Settings
from tilewright import wire
from tilewright.schema.codec import gathered
from tilewright.schema.problem import GemmProblem
from tuner.store import misses, records
from tuner.store.access.keys import once

router = APIRouter(prefix="/misses", tags=["tuning"])


@router.post(
    "",
    status_code=202,
    operation_id="report_misses",
    responses=errors(Kind.INVALID_PROBLEM, Kind.IDEMPOTENCY_MISMATCH, Kind.IDEMPOTENCY_IN_FLIGHT),
)
def post_misses(
    body: wire.MissesBody, service: ServiceDep, idempotency_key: IdempotencyKey, request: Request
) -> wire.MissAnswer:
    """Count problems that ran without a tuned kernel, with the vendor library's time where it is known; not
    those over the limits of this service, which it never tunes."""
    reports = estimates.reports(body.misses, partial(service.estimates, body.device_class))
    digest, most = records.digest(body.model_dump(mode="json")), service.settings.max_misses
    within = [report for report in reports if _is_within_limits(report.problem, service.settings)]
    with service.store.read() as session:
        fitting = misses.fitting(session, body.device_class, within, most, caller(request))
    with service.store.begin() as session:

        def note() -> dict[str, int]:
            kept = misses.note(session, body.device_class, fitting, most, caller=caller(request))
            return {"noted": len(kept)}

        noted = once(session, idempotency_key, digest, note)["noted"]
    return wire.MissAnswer(noted=noted, dropped=len(reports) - noted)


def _is_within_limits(problem: GemmProblem, settings: Settings) -> bool:
    try:
        admission.check_size(problem, settings)
    except Refusal:
        return False
    return True


@router.get("", operation_id="list_misses", responses=errors())
def get_misses(
    query: Annotated[wire.MissQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.MissList:
    """Open misses that no job is at, the most device time at stake first."""
    after = miss_place(query.cursor)
    with service.store.read() as session:
        found = misses.ranked(session, query.device_class, query.limit, after)
    following = link_next(request, response, page_end(found, query.limit, lambda miss: _cursor(miss.place)))
    items = [wire.MissView(**gathered(wire.MissView, miss)) for miss in found]
    return wire.MissList(items=items, next=following)


def _cursor(place: misses.Place) -> str:
    stake, number = place
    return f"{stake!r} {number}"
