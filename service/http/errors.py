"""Errors as RFC 9457 problem documents: one handler for each source of errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.errors import Kind, Refusal
from tilewright.errors import InvalidProblem
from tilewright.wire import ErrorItem, ProblemDocument
from tuner.store.database import IdempotencyConflict

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("tilewright.service")


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem document."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(InvalidProblem, _invalid)
    app.add_exception_handler(IdempotencyConflict, _conflict)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _internal)


def respond(
    request: Request, document: ProblemDocument, headers: Mapping[str, str] | None = None
) -> Response:
    """The response of a problem document."""
    request_id = request.scope.get("request_id")
    whole = document.model_copy(update={"instance": request.url.path, "request_id": request_id})
    named = {"X-Request-ID": request_id} if request_id else {}
    return Response(
        whole.model_dump_json(exclude_none=True),
        status_code=document.status,
        headers={**(headers or {}), **named},
        media_type=MEDIA_TYPE,
    )


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refusal):
        return respond(request, error.kind.document(str(error.detail), **error.members), error.headers)
    kind = {
        404: Kind.NOT_FOUND,
        405: Kind.METHOD_NOT_ALLOWED,
        413: Kind.TOO_LARGE,
        415: Kind.MEDIA_TYPE,
    }.get(error.status_code, Kind.BAD_REQUEST)
    return respond(request, kind.document(_plain_detail(kind, request, error)), error.headers)


def _plain_detail(kind: Kind, request: Request, error: HTTPException) -> str:
    if kind is Kind.NOT_FOUND:
        return f"there is nothing at {request.url.path}; GET /docs lists every path"
    if kind is Kind.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        return f"{request.method} does not work on {request.url.path}; use {allowed}"
    return str(error.detail)


def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    items = [_item(e["type"], e["loc"], e["msg"]) for e in error.errors()]
    detail = "; ".join(f"{item.pointer or item.parameter or 'request'}: {item.detail}" for item in items)
    return respond(request, Kind.INVALID_REQUEST.document(detail[:2000], errors=items))


def _item(kind: str, loc: Sequence[str | int], message: str) -> ErrorItem:
    # NOTE: for a body that is not JSON the second part is a position in its text.
    where, names = str(loc[0]), [] if kind == "json_invalid" else [str(part) for part in loc[1:]]
    if where == "body":
        escaped = (name.replace("~", "~0").replace("/", "~1") for name in names)
        return ErrorItem(detail=message, pointer="#" + "".join(f"/{name}" for name in escaped))
    return ErrorItem(detail=message, parameter=names[-1] if names else where)


def _invalid(request: Request, error: Exception) -> Response:
    return respond(request, Kind.INVALID_PROBLEM.document(str(error)))


def _conflict(request: Request, error: Exception) -> Response:
    return respond(request, Kind.IDEMPOTENCY_MISMATCH.document(str(error)))


def _gone(request: Request, _error: Exception) -> Response:
    # NOTE: nobody reads this; it keeps a caller that hung up from being logged as a fault of the service.
    return respond(request, Kind.BAD_REQUEST.document("the body ended before its Content-Length"))


def _internal(request: Request, error: Exception) -> Response:
    log.error("request %s failed", request.scope.get("request_id"), exc_info=error)
    detail = "the service failed; its log has the reason under this request_id"
    return respond(request, Kind.INTERNAL.document(detail))
