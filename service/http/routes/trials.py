"""``/trials``: results out of this store and into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import IO, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.errors import Kind, Refusal
from service.http.deps import ServiceDep, who
from service.http.openapi import binary, errors
from service.results import export, importing
from service.results.spool import NoRoom, Spool
from service.results.uploads import BadLine
from tilewright import wire
from tilewright.http.calls import JSON, NDJSON

router = APIRouter(prefix="/trials", tags=["results"])
_RETRY_S = 60
_RECORDS = "A job, trial, artifact or winner a line"
_T4_SCHEMA = {
    "type": "object",
    "required": ["results"],
    "properties": {
        "schema_version": {"type": "string", "pattern": "^1\\."},
        "results": {"type": "array", "items": {"type": "object", "required": ["tilewright"]}},
    },
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {**binary(NDJSON, _RECORDS)["content"], JSON: {"schema": _T4_SCHEMA}},
    }
}
_EXPORTED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": f"{_RECORDS}; or one T4 document",
        "content": {NDJSON: {"schema": {"type": "string"}}, JSON: {"schema": _T4_SCHEMA}},
    },
    **errors(),
}


async def _file(request: Request, service: ServiceDep) -> AsyncIterator[tuple[wire.Format, IO[bytes]]]:
    """The body in a file of no name, once it is its turn."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (NDJSON, JSON):
        raise Refusal(Kind.MEDIA_TYPE, f"the body must be {NDJSON}, or a T4 file as {JSON}, got {kind!r}")
    if service.imports.places.locked():
        detail = "as many imports wait as may; try again in a minute"
        raise Refusal(Kind.TOO_MANY_IMPORTS, detail, retry_after=_RETRY_S)
    async with service.imports.places:
        try:
            with Spool(service.settings.cache_dir) as spool:
                async for chunk in request.stream():
                    spool.write(chunk)
                file = spool.whole()
                async with service.imports.turn:
                    yield wire.Format.T4 if kind == JSON else wire.Format.NDJSON, file
        except NoRoom as error:
            what = Kind.STORAGE_FULL if error.is_full else Kind.NOT_READY
            raise Refusal(what, str(error), retry_after=_RETRY_S) from error


@router.get("", operation_id="export_results", response_class=Response, responses=_EXPORTED)
def get_trials(query: Annotated[wire.ExportQuery, Query()], service: ServiceDep) -> StreamingResponse:
    """Jobs that have ended with all their trials, and the winners with their kernels."""
    if query.format is wire.Format.T4:
        return StreamingResponse(export.export(service.store, query), media_type=JSON)
    return StreamingResponse(export.ndjson(service.store, query, service.signer), media_type=NDJSON)


@router.post(
    "",
    operation_id="import_results",
    openapi_extra=_BODY,
    responses=errors(Kind.MEDIA_TYPE, Kind.TOO_MANY_IMPORTS, Kind.STORAGE_FULL, Kind.NOT_READY),
)
def post_trials(
    query: Annotated[wire.ImportQuery, Query()],
    body: Annotated[tuple[wire.Format, IO[bytes]], Depends(_file, scope="function")],
    service: ServiceDep,
    request: Request,
) -> wire.ImportAnswer:
    """Merge results of another store: all of the body or nothing; what is here already changes nothing. One
    body after the other is merged."""
    kind, file = body
    own, key_id = service.signer.public_key, request.scope.get("key_id")
    try:
        return importing.merge(service.store, file, kind, own, who(request), query.import_id, key_id)
    except BadLine as error:
        raise Refusal(Kind.INVALID_REQUEST, str(error)) from error
