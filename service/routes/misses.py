"""``/misses``: problems that clients ran without a tuned kernel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.deps import ServiceDep
from service.estimates import Estimates
from service.openapi import errors
from service.problems import Kind
from service.views import miss_view
from tilewright import wire
from tuner.store import misses

router = APIRouter(prefix="/misses", tags=["tuning"])


@router.post("", status_code=202, operation_id="report_misses", responses=errors(Kind.INVALID_PROBLEM))
def post_misses(body: wire.MissesBody, service: ServiceDep) -> wire.MissAnswer:
    """Count problems that ran without a tuned kernel, with the vendor library's time where it is known."""
    with service.store.read() as session:
        estimates = Estimates.of(session, body.device_class)
    reports = [estimates.report(miss) for miss in body.misses]
    with service.store.begin() as session:
        noted = misses.note(session, body.device_class, reports, service.settings.max_misses)
    return wire.MissAnswer(noted=noted, dropped=len(reports) - noted)


@router.get("", operation_id="list_misses", responses=errors())
def get_misses(query: Annotated[wire.MissQuery, Query()], service: ServiceDep) -> wire.MissList:
    """Open misses, the most device time at stake first."""
    with service.store.read() as session:
        found = misses.ranked(session, query.device_class, query.limit)
    return wire.MissList(items=[miss_view(miss) for miss in found])
