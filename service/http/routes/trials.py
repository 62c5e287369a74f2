"""``/trials``: results out of this store and into it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.errors import Kind, Refusal
from service.http.deps import ServiceDep
from service.http.openapi import binary, errors
from service.results import export, importing
from tilewright import wire
from tilewright.http.calls import JSON, NDJSON

router = APIRouter(prefix="/trials", tags=["results"])
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


async def _body(request: Request) -> tuple[str, bytes]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (NDJSON, JSON):
        raise Refusal(Kind.MEDIA_TYPE, f"the body must be {NDJSON}, or a T4 file as {JSON}, got {kind!r}")
    return kind, await request.body()


@router.get("", operation_id="export_results", response_class=Response, responses=_EXPORTED)
def get_trials(query: Annotated[wire.ExportQuery, Query()], service: ServiceDep) -> StreamingResponse:
    """Jobs that have ended with all their trials, and the winners with their kernels."""
    if query.format is wire.Format.T4:
        return StreamingResponse(export.export(service.store, query), media_type=JSON)
    return StreamingResponse(export.ndjson(service.store, query), media_type=NDJSON)


@router.post("", operation_id="import_results", openapi_extra=_BODY, responses=errors(Kind.MEDIA_TYPE))
def post_trials(body: Annotated[tuple[str, bytes], Depends(_body)], service: ServiceDep) -> wire.ImportAnswer:
    """Merge results of another store: all of the body or nothing; what is here already changes nothing."""
    kind, content = body
    try:
        lines = export.parse(content) if kind == JSON else importing.ndjson(content)
        return importing.merge(service.store, lines)
    except importing.BadLine as error:
        raise Refusal(Kind.INVALID_REQUEST, str(error)) from error
