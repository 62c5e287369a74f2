"""Errors as RFC 9457 problem documents: one handler for each source of errors."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from service.engine.database_health import Outage, outage
from service.errors import Kind, Refusal
from tilewright.errors import InvalidProblem
from tilewright.schema.codec import rule
from tilewright.wire import ErrorItem, ProblemDocument
from tuner.store.database import IdempotencyConflict, WritersBusy
from tuner.store.records import Unreadable

MEDIA_TYPE = "application/problem+json"
_MOST_TOLD = 20
_SHOWN = 200  # characters of what a caller chose
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_NO_OBJECT = frozenset({"model_type", "model_attributes_type", "dict_type"})
_RETRY_S = {Kind.STORAGE_FULL: 30, Kind.DATABASE_UNAVAILABLE: 5}
_SURROGATE = re.compile("[\ud800-\udfff]")
log = logging.getLogger("tilewright.service")


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem document."""
    for kind in _HANDLERS:
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    # NOTE: for a plain function the answer would wait until one of the threads that use the database is free.
    return answer(request, error)


def answer(request: Request, error: Exception) -> Response:
    """The problem document that the API answers an error with."""
    return next(_HANDLERS[kind] for kind in type(error).__mro__ if kind in _HANDLERS)(request, error)


def shown(text: str) -> str:
    """What a caller chose, such as a path, as an answer repeats it."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def respond(
    request: Request, document: ProblemDocument, headers: Mapping[str, str] | None = None
) -> Response:
    """The response of a problem document; lone surrogates, which what was sent may hold, are escaped."""
    request_id = request.scope.get("request_id")
    whole = document.model_copy(update={"instance": shown(request.url.path), "request_id": request_id})
    named = {"X-Request-ID": request_id} if request_id else {}
    plain = json.dumps(
        whole.model_dump(mode="json", exclude_none=True), ensure_ascii=False, separators=(",", ":")
    )
    return Response(
        _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", plain),
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
    headers = {"Allow": _allowed(request)} if kind is Kind.METHOD_NOT_ALLOWED else error.headers
    return respond(request, kind.document(_plain_detail(kind, request, error)), headers)


def _allowed(request: Request) -> str:
    """The methods of every route of the path; the router names those of the first one alone."""
    routes = request.app.routes
    asked = [(method, {**request.scope, "method": method}) for method in _METHODS]
    found = [
        method for method, scope in asked if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]
    return ", ".join(sorted({*found, "HEAD"} if "GET" in found else found))


def _plain_detail(kind: Kind, request: Request, error: HTTPException) -> str:
    if kind is Kind.NOT_FOUND:
        return f"there is nothing at {shown(request.url.path)}; GET /docs lists every path"
    if kind is Kind.METHOD_NOT_ALLOWED:
        return f"{shown(request.method)} does not work on {shown(request.url.path)}; use {_allowed(request)}"
    cause = error.__cause__
    if isinstance(cause, ValueError) and not isinstance(cause, UnicodeError):
        return f"the body has a number of more than {sys.get_int_max_str_digits()} digits; send a smaller one"
    if isinstance(cause, UnicodeError | RecursionError):  # NOTE: of which FastAPI says nothing
        return f"not JSON: {cause}; send one JSON object of few levels, in UTF-8, uncompressed"
    return str(error.detail)


def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    broken = error.errors()
    items = [_item(e["type"], e["loc"], _rule(request, e)) for e in broken[:_MOST_TOLD]]
    detail = "; ".join(f"{item.pointer or item.parameter or 'request'}: {item.detail}" for item in items)
    more = f"; and {len(broken) - _MOST_TOLD} more" if len(broken) > _MOST_TOLD else ""
    return respond(request, Kind.INVALID_REQUEST.document(detail[:2000] + more, errors=items))


def _rule(request: Request, error: Mapping[str, Any]) -> str:
    """What the broken rule requires, also for a body that could not be read as JSON."""
    if error["type"] == "json_invalid":
        return f"not JSON: {error['ctx']['error']} at character {error['loc'][1]}; send one JSON object"
    if isinstance(error.get("input"), bytes):
        sent = request.headers.get("content-type", "no Content-Type")
        return f"sent as {sent}; send JSON with the header 'Content-Type: application/json'"
    if error["type"] in _NO_OBJECT:
        return "must be a JSON object"
    if error["type"] == "missing" and error["loc"] == ("body",):
        return "the body is empty; send one JSON object"
    return rule(error)


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


def _unreadable(request: Request, error: Exception) -> Response:
    return respond(request, Kind.UNREADABLE.document(str(error)))


def _database(request: Request, error: Exception) -> Response:
    found = outage(error)
    if found is None:
        return _internal(request, error)
    request.app.state.service.health.note(found)
    log.warning("request %s: the database: %s (%s)", request.scope.get("request_id"), found, error)
    kind = Kind.STORAGE_FULL if found is Outage.FULL else Kind.DATABASE_UNAVAILABLE
    detail = f"nothing was changed, the database cannot be used now: {found}; repeat the request"
    return respond(request, kind.document(detail), {"Retry-After": str(_RETRY_S[kind])})


def _gone(request: Request, _error: Exception) -> Response:
    # NOTE: nobody reads this; it keeps a caller that hung up from being logged as a fault of the service.
    return respond(request, Kind.BAD_REQUEST.document("the body ended before its Content-Length"))


def _internal(request: Request, error: Exception) -> Response:
    log.error("request %s failed", request.scope.get("request_id"), exc_info=error)
    detail = "the service failed; its log has the reason under this request_id"
    # NOTE: uvicorn closes the connection then, and the next request on it would be lost.
    return respond(request, Kind.INTERNAL.document(detail), {"Connection": "close"})


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Response]] = {
    HTTPException: _http,
    RequestValidationError: _validation,
    InvalidProblem: _invalid,
    IdempotencyConflict: _conflict,
    Unreadable: _unreadable,
    SQLAlchemyError: _database,
    WritersBusy: _database,
    ClientDisconnect: _gone,
    Exception: _internal,
}
