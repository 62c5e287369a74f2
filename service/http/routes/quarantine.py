"""``/quarantine``: configs that broke a device class."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from service.errors import Kind, Refusal
from service.http.deps import ServiceDep, who
from service.http.openapi import errors
from service.http.views import link_next, number_place, page_end
from tilewright import wire
from tilewright.schema.codec import gathered
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import lock_results
from tuner.store.faults import quarantine

router = APIRouter(prefix="/quarantine", tags=["results"])
EntryId = Annotated[int, Path(ge=1, le=2**31 - 1, description="As in the answer of GET /quarantine")]


@router.get("", operation_id="list_quarantine", responses=errors())
def get_quarantine(
    query: Annotated[wire.QuarantineQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.QuarantineList:
    """Configs that crashed, hung or gave wrong results on a device class, those found last first."""
    before = number_place(query.cursor) or None
    with service.store.read() as session:
        found = quarantine.listing(session, query.device_class, query.limit, before)
    following = link_next(request, response, page_end(found, query.limit))
    judge = service.quality.staleness_of
    items = [
        wire.QuarantineView(
            **gathered(wire.QuarantineView, one, staleness=judge(one.config.family, one.provenance))
        )
        for one in found
    ]
    return wire.QuarantineList(items=items, next=following)


@router.delete(
    "/{entry_id}", operation_id="release_quarantined", status_code=204, responses=errors(Kind.NOT_FOUND)
)
def delete_entry(entry_id: EntryId, service: ServiceDep, request: Request) -> None:
    """Release a config: it is tried again, and its winners are served again."""
    with service.store.begin() as session:
        lock_results(session)
        if not quarantine.release(session, entry_id):
            raise Refusal(
                Kind.NOT_FOUND, f"there is no entry {entry_id}; GET /quarantine lists those there are"
            )
        audit.note(session, who(request), Action.RELEASE, entry_id)
