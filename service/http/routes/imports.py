"""``/trust``, ``/imports`` and ``/audit``: whose results are taken, which were, how results are taken out
again, and who did so."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.errors import Kind, Refusal
from service.http.deps import ServiceDep, who
from service.http.openapi import errors
from service.http.views import (
    BIG_INT,
    import_cursor,
    import_place,
    import_view,
    link_next,
    number_place,
    page_end,
    waiting_view,
)
from tilewright import wire
from tilewright.schema.codec import encode, gathered
from tuner.store import imports
from tuner.store.access import audit, keys
from tuner.store.access.audit import Action
from tuner.store.database import StoreError
from tuner.store.imports import InUse
from tuner.store.queue import imported
from tuner.store.upkeep import staging

router = APIRouter(tags=["imports"])
ImportId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="As in the answer of POST /trials")]
_WAITS = 1000


@router.get("/trust", operation_id="trust", responses=errors())
def get_trust(service: ServiceDep) -> wire.TrustView:
    """The public key that this service signs with, and the keys whose kernels it takes."""
    with service.store.read() as session:
        found = keys.trusted(session)
    views = [wire.TrustedKeyView(**gathered(wire.TrustedKeyView, one)) for one in found]
    return wire.TrustView(key=service.signer.public_key, trusted=views)


@router.get("/imports", operation_id="list_imports", responses=errors())
def get_imports(
    query: Annotated[wire.PageQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.ImportList:
    """Results that came from other stores, those that entered last first."""
    with service.store.read() as session:
        found = imports.listing(session, query.limit, import_place(query.cursor))
        items = [import_view(one, imports.counts(session, one.id)) for one in found]
    following = link_next(request, response, page_end(found, query.limit, import_cursor))
    return wire.ImportList(items=items, next=following)


@router.get("/imports/{import_id}", operation_id="get_import", responses=errors(Kind.NOT_FOUND))
def get_import(import_id: ImportId, service: ServiceDep) -> wire.ImportDetails:
    """An import, and its winners that wait to be built and raced here."""
    with service.store.read() as session:
        found = imports.get(session, import_id)
        if found is None:
            raise Refusal(
                Kind.NOT_FOUND, f"there is no import {import_id}; GET /imports lists those there are"
            )
        view = import_view(found, imports.counts(session, import_id))
        waits = [waiting_view(one) for one in imported.waits(session, import_id, _WAITS)]
    return wire.ImportDetails(**view.model_dump(), waits=waits)


@router.get("/audit", operation_id="list_audit", responses=errors())
def get_audit(
    query: Annotated[wire.PageQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.AuditList:
    """Who changed what, the last change first."""
    before = number_place(query.cursor, BIG_INT) or None
    with service.store.read() as session:
        found = audit.listing(session, query.limit, before)
    following = link_next(request, response, page_end(found, query.limit))
    items = [wire.AuditEntry(**gathered(wire.AuditEntry, entry)) for entry in found]
    return wire.AuditList(items=items, next=following)


@router.delete(
    "/imports/{import_id}", operation_id="delete_import", responses=errors(Kind.NOT_FOUND, Kind.NOT_READY)
)
def delete_import(import_id: ImportId, service: ServiceDep, request: Request) -> wire.Counts:
    """Take out everything that an import brought; what was raced here stands as before."""
    try:
        removed = staging.remove(service.store, import_id, who(request), service.engine.stopping)
        return wire.Counts(**encode(removed))
    except staging.BrokeOff as error:
        raise Refusal(Kind.NOT_READY, str(error)) from error
    except StoreError as error:
        raise Refusal(Kind.NOT_FOUND, str(error)) from error


@router.delete(
    "/best-config",
    operation_id="delete_best_config",
    responses=errors(Kind.NOT_TUNED, Kind.INVALID_PROBLEM),
)
def delete_best_config(
    query: Annotated[wire.WinnerQuery, Query()], service: ServiceDep, request: Request
) -> wire.Counts:
    """Take out the winner of a problem: it counts as never tuned until it is tuned again."""
    problem = query.to_problem()
    try:
        with service.store.begin() as session:
            removed = encode(imports.remove_best(session, query.target, problem))
            audit.note(session, who(request), Action.DELETE_BEST, f"{problem} on {query.target}", **removed)
    except StoreError as error:
        raise Refusal(Kind.NOT_TUNED, str(error)) from error
    return wire.Counts(**removed)


@router.delete(
    "/problems",
    operation_id="delete_problem",
    responses=errors(Kind.NOT_FOUND, Kind.INVALID_PROBLEM, Kind.IN_USE, Kind.NOT_READY),
)
def delete_problem(
    query: Annotated[wire.ProblemQuery, Query()], service: ServiceDep, request: Request
) -> wire.Counts:
    """Take out a problem on all devices: its jobs, trials, winners and misses."""
    problem = query.to_problem()
    try:
        removed = staging.remove_problem(service.store, problem, who(request), service.engine.stopping)
        return wire.Counts(**encode(removed))
    except staging.BrokeOff as error:
        raise Refusal(Kind.NOT_READY, str(error)) from error
    except StoreError as error:
        raise Refusal(Kind.IN_USE if isinstance(error, InUse) else Kind.NOT_FOUND, str(error)) from error
