"""What wraps every request: its id, its line in the log, its time, and the limits of its body."""

from __future__ import annotations

import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
import structlog
from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Kind, Refusal
from service.http.errors import respond
from service.metrics import Metrics
from service.settings import Settings
from tilewright.wire import ProblemDocument

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:@/\[\]]+)(?::[0-9]+)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_STALL_S = 10.0
_SLOWEST_BYTES = 64 * 1024  # a second
log = logging.getLogger("tilewright.requests")


class RequestId:
    """Gives each request an id, the caller's ``X-Request-ID`` where it has one, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_id)


class RequestLog:
    """Counts each request, and logs those that change something or are refused; the others at ``debug``.

    Neither a query nor a header is logged: a key could be in them.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = scope["method"], _template(scope)
        known = method if method in _METHODS else "other"
        self._metrics.requests.labels(known, route, str(status)).observe(seconds)
        telling = status >= 400 or method not in _SAFE
        line = {"method": method, "path": scope["path"], "status": status, "ms": round(1e3 * seconds, 2)}
        log.log(logging.INFO if telling else logging.DEBUG, "request", extra=line | _caller(scope))


class SameSite:
    """Refuses what a page of another site could send through a browser of this machine or network.

    The name in ``Host`` must be this service's, since the owner of any other name can let it point here (DNS
    rebinding), and a request that changes something may have no ``Origin`` but the service's own.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        named = urlsplit(settings.url or "").hostname
        own = ("localhost", settings.host, *settings.allowed_hosts, *([named] if named else []))
        self._names = frozenset(name.lower() for name in own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        response = respond(Request(scope), refusal, {"Connection": "close"})
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> ProblemDocument | None:
        headers = Headers(scope=scope)
        hosts, origin = headers.getlist("host"), headers.get("origin")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            shown = hosts[0][:100] if hosts else "none"
            return Kind.FOREIGN_HOST.document(
                f"the Host of the request is {shown!r}; if that is the service's own name, add it to the "
                "service's TILEWRIGHT_ALLOWED_HOSTS"
            )
        if origin is None or scope["method"] in _SAFE or urlsplit(origin).netloc == hosts[0]:
            return None
        return Kind.FOREIGN_ORIGIN.document(
            f"the Origin {origin[:100]!r} is not this service's; send the request from its own pages or "
            "without Origin"
        )

    def _is_ours(self, host: str) -> bool:
        """A name of the service; an address too, which nobody can make point elsewhere."""
        if "*" in self._names:
            return True
        found = _HOST.fullmatch(host)
        name = found[1].strip("[]").lower() if found else ""
        try:
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


class BodyLimit:
    """Refuses bodies over the limit, by ``Content-Length`` before a byte is read, else while reading, and
    bodies that come slower than 64 KiB/s after 10 s of patience."""

    def __init__(self, app: ASGIApp, settings: Settings, larger: Mapping[str, str]) -> None:
        """``larger`` names the setting with the limit of paths other than ``max_json_bytes``."""
        self._app = app
        self._settings = settings
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = self._larger.get(scope["path"], "max_json_bytes")
        limit = getattr(self._settings, name)
        detail = f"a body of {scope['method']} {scope['path']} may have {limit} bytes ({name})"
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared[:20]) > limit:
            response = respond(Request(scope), Kind.TOO_LARGE.document(detail), {"Connection": "close"})
            await response(scope, receive, send)
            return
        await self._app(scope, _Body(receive, limit, detail).receive, send)


class _Body:
    """The body of one request on its way in."""

    def __init__(self, receive: Receive, limit: int, detail: str) -> None:
        self._receive = receive
        self._limit = limit
        self._detail = detail
        self._total = 0
        self._started = time.monotonic()
        self._whole = False

    async def receive(self) -> Message:
        """The next part of it; after its end whatever comes."""
        if self._whole:
            return await self._receive()
        left = self._started + _STALL_S + self._total / _SLOWEST_BYTES - time.monotonic()
        with anyio.move_on_after(left) as patience:
            message = await self._receive()
        if patience.cancelled_caught:
            detail = (
                f"the body stopped after {self._total} bytes; send it at {_SLOWEST_BYTES} bytes/s or more"
            )
            raise Refusal(Kind.BODY_TIMEOUT, detail, headers={"Connection": "close"})
        self._total += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._total > self._limit:
            raise Refusal(Kind.TOO_LARGE, self._detail, headers={"Connection": "close"})
        return message


_METHODS = _SAFE | {"POST", "PUT", "PATCH", "DELETE"}


def _template(scope: Scope) -> str:
    """The path as the route has it, so that ids do not become labels."""
    return str(getattr(scope.get("route"), "path", "none"))


def _caller(scope: Scope) -> dict[str, Any]:
    key_id = scope.get("key_id")
    return {"key": key_id} if key_id else {}
