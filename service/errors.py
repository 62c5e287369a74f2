"""Errors of the service: every kind with its HTTP status, and the exception that carries one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from starlette.exceptions import HTTPException

from tilewright.wire import ProblemDocument


class Kind(Enum):
    """Every kind of error: its stable name, HTTP status and title."""

    INVALID_REQUEST = ("invalid-request", 422, "The request breaks a rule")
    INVALID_PROBLEM = ("invalid-problem", 422, "Not a GEMM this service computes")
    UNSUPPORTED = ("unsupported", 422, "No kernel family or device for this problem")
    OVER_LIMIT = ("over-limit", 422, "Over a limit of this service")
    IDEMPOTENCY_MISMATCH = ("idempotency-mismatch", 422, "Idempotency-Key was used before")
    BAD_REQUEST = ("bad-request", 400, "The request cannot be read")
    NOT_FOUND = ("not-found", 404, "Not found")
    NOT_TUNED = ("not-tuned", 404, "No stored result")
    UNAUTHENTICATED = ("unauthenticated", 401, "A key is needed")
    FORBIDDEN = ("forbidden", 403, "The key does not allow this")
    FOREIGN_ORIGIN = ("foreign-origin", 403, "A page of another site sent this")
    FOREIGN_HOST = ("foreign-host", 421, "The service has another name")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "Method not allowed")
    BODY_TIMEOUT = ("body-timeout", 408, "The body came too slowly")
    IDEMPOTENCY_IN_FLIGHT = ("idempotency-in-flight", 409, "A request with this Idempotency-Key is in work")
    IN_USE = ("in-use", 409, "A job is at work on it")
    PRECONDITION = ("precondition-failed", 412, "What is to be changed is not what the caller knows")
    TOO_LARGE = ("body-too-large", 413, "The body is too large")
    MEDIA_TYPE = ("unsupported-media-type", 415, "Unsupported media type")
    QUEUE_FULL = ("queue-full", 429, "The queue is full")
    TOO_MANY_GEMMS = ("too-many-gemms", 429, "Too many GEMMs at once")
    TOO_MANY_IMPORTS = ("too-many-imports", 429, "Too many imports at once")
    DEVICE_BUSY = ("device-busy", 503, "The device is busy")
    PAGES_BUSY = ("pages-busy", 503, "Too many large pages at once")
    DEVICE_FAILED = ("device-failed", 503, "The device failed")
    DATABASE_UNAVAILABLE = ("database-unavailable", 503, "The database is not available")
    STORAGE_FULL = ("storage-full", 507, "A disk of the service has no space")
    NOT_READY = ("not-ready", 503, "Not ready")
    JOB_FAILED = ("job-failed", 500, "The tuning job failed")
    INTERNAL = ("internal", 500, "Internal error")
    UNREADABLE = ("unreadable", 501, "Another release wrote this")

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


class Refusal(HTTPException):
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
