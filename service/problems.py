"""Errors as RFC 9457 problem documents: kinds, and the handlers that write them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tilewright.errors import InvalidProblem
from tilewright.wire import ErrorItem, ProblemDocument
from tuner.store.errors import IdempotencyConflict

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("tilewright.service")


class Kind(Enum):
    """Every kind of error: its stable name, HTTP status and title."""

    INVALID_REQUEST = ("invalid-request", 422, "The request breaks a rule")
    INVALID_PROBLEM = ("invalid-problem", 422, "Not a GEMM this service computes")
    UNSUPPORTED = ("unsupported", 422, "No kernel family or device for this problem")
    OVER_LIMIT = ("over-limit", 422, "Over a limit of this service")
    IDEMPOTENCY_MISMATCH = ("idempotency-mismatch", 422, "Idempotency-Key was used for another request")
    BAD_REQUEST = ("bad-request", 400, "The request cannot be read")
    NOT_FOUND = ("not-found", 404, "Not found")
    NOT_TUNED = ("not-tuned", 404, "No stored result")
    UNAUTHENTICATED = ("unauthenticated", 401, "A key is needed")
    FORBIDDEN = ("forbidden", 403, "The key does not allow this")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "Method not allowed")
    BODY_TIMEOUT = ("body-timeout", 408, "The body came too slowly")
    IDEMPOTENCY_IN_FLIGHT = ("idempotency-in-flight", 409, "A request with this Idempotency-Key is in work")
    PRECONDITION = ("precondition-failed", 412, "What is to be changed is not what the caller knows")
    TOO_LARGE = ("body-too-large", 413, "The body is too large")
    MEDIA_TYPE = ("unsupported-media-type", 415, "Unsupported media type")
    QUEUE_FULL = ("queue-full", 429, "The queue is full")
    TOO_MANY_GEMMS = ("too-many-gemms", 429, "Too many GEMMs at once")
    DEVICE_BUSY = ("device-busy", 503, "The device is busy")
    DEVICE_FAILED = ("device-failed", 503, "The device failed")
    NOT_READY = ("not-ready", 503, "Not ready")
    JOB_FAILED = ("job-failed", 500, "The tuning job failed")
    INTERNAL = ("internal", 500, "Internal error")

    @property
    def uri(self) -> str:
        """The ``type`` of the problem document."""
        return f"urn:tilewright:problem:{self.value[0]}"

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[1]

    def document(self, detail: str, **members: Any) -> ProblemDocument:
        """A document of this kind."""
        return ProblemDocument(
            type=self.uri, title=self.value[2], status=self.status, detail=detail, **members
        )


class Problem(HTTPException):
    """A refusal: its kind, what to do about it, and further members of the document."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        retry_after: int | None = None,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        later = {"Retry-After": str(retry_after)} if retry_after is not None else {}
        super().__init__(kind.status, detail, {**(headers or {}), **later})
        self.kind = kind
        self.members = dict(members or {})


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
    if isinstance(error, Problem):
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
