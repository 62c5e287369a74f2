"""Middleware of every request: its id, its line in the log, its time, and the limits of its body."""

from __future__ import annotations

import abc
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
from service.http.errors import respond, shown
from service.metrics import Metrics
from service.server.connections import PATIENCE_S, slowest_bytes
from service.settings import Settings
from tilewright.wire import ProblemDocument

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:@/\[\]]+)(?::([0-9]{1,5}))?")
_PORTS = {"http": 80, "https": 443}
_OWN_SITES = frozenset({"same-origin", "none"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOGGED_METHOD, _LOGGED_PATH = 20, 200  # characters: a caller chooses both
_MOST_FIELDS = 100
log = logging.getLogger("tilewright.requests")


class _Middleware(abc.ABC):
    """Handles HTTP requests; anything else passes by."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self._app)(scope, receive, send)

    @abc.abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered further inside."""


async def _refuse(document: ProblemDocument, scope: Scope, receive: Receive, send: Send) -> None:
    await respond(Request(scope), document, {"Connection": "close"})(scope, receive, send)


class RequestId(_Middleware):
    """Gives each request an id, the caller's ``X-Request-ID`` where it has one, and sends it back."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_id)


class RequestLog(_Middleware):
    """Counts each request, and logs those that change something or are refused; the others at ``debug``.

    Neither a query nor a header is logged: a key could be in them.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        super().__init__(app)
        self._metrics = metrics

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 500

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        except* anyio.BrokenResourceError:
            # NOTE: FastAPI raises it, and it is no fault
            log.debug("a follower of %s hung up", scope["path"])
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = scope["method"], _template(scope)
        known = method if method in _METHODS else "other"
        self._metrics.requests.labels(known, route, str(status)).observe(seconds)
        telling = status >= 400 or method not in _SAFE
        line = {"method": method[:_LOGGED_METHOD], "path": scope["path"][:_LOGGED_PATH], "status": status}
        line |= {"ms": round(1e3 * seconds, 2)} | _caller(scope)
        log.log(logging.INFO if telling else logging.DEBUG, "request", extra=line)


class SameSite(_Middleware):
    """Refuses requests that a page of another site could send through a browser of this machine or network.

    The name in ``Host`` must be this service's, since the owner of any other name can let it point here (DNS
    rebinding). A request that changes something comes from no page (without ``Origin``), or from a page of
    the ``Host`` or of the setting ``url``; ``Sec-Fetch-Site``, where a browser sends it, must agree.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        url = urlsplit(settings.url or "")
        own = ("localhost", settings.host, *settings.allowed_hosts, *([url.hostname] if url.hostname else []))
        self._names = frozenset(name.lower() for name in own)
        self._url = _authority(url.scheme, url.netloc)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self._refusal(scope):
            await _refuse(refusal, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ProblemDocument | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            shown = hosts[0][:100] if hosts else "none"
            return Kind.FOREIGN_HOST.document(
                f"the Host of the request is {shown!r}; if that is the service's own name, add it to the "
                "service's TILEWRIGHT_ALLOWED_HOSTS"
            )
        if not scope["path"].startswith(("/", "*")):
            return Kind.BAD_REQUEST.document("the request names a whole URL; send its path alone")
        if scope["method"] in _SAFE:
            return None
        site, origins = headers.get("sec-fetch-site", "none"), headers.getlist("origin")
        if site in _OWN_SITES and all(self._is_own_page(origin, hosts[0]) for origin in origins):
            return None
        return Kind.FOREIGN_ORIGIN.document(
            f"a page of {', '.join(origins)[:100] or 'another site'} sent this; send the request from the "
            "service's own pages, or without Origin and Sec-Fetch-Site"
        )

    def _is_ours(self, host: str) -> bool:
        """A name of the service; an address too, which nobody can make point elsewhere."""
        found = _authority("http", host)
        if found is None or "*" in self._names:
            return found is not None
        try:
            return found[0] in self._names or bool(ipaddress.ip_address(found[0]))
        except ValueError:
            return False

    def _is_own_page(self, origin: str, host: str) -> bool:
        scheme, _, authority = origin.partition("://")
        page = _authority(scheme, authority)
        return page is not None and page in (_authority(scheme, host), self._url)


def _authority(scheme: str, text: str) -> tuple[str, int] | None:
    """Name or address, and port, of the authority of a URL; None if it is not one."""
    found = _HOST.fullmatch(text)
    if found is None or scheme not in _PORTS:
        return None
    port = int(found[2] or _PORTS[scheme])
    return (found[1].strip("[]").lower(), port) if port <= 65535 else None


class QueryLimit(_Middleware):
    """Refuses a query of more than ``_MOST_FIELDS`` fields before anything looks at them one by one."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["query_string"].count(b"&") < _MOST_FIELDS:
            await self._app(scope, receive, send)
            return
        detail = f"the query has more than {_MOST_FIELDS} fields; send those alone that GET /docs lists"
        await _refuse(Kind.BAD_REQUEST.document(detail), scope, receive, send)


class HeadRequests(_Middleware):
    """Answers ``HEAD`` as ``GET`` without the body, with the same keys. A stream ends where its body would
    begin."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
            elif message.get("more_body", False):
                stream.cancel()

        scope["method"] = "GET"  # NOTE: not in a copy, as those outside read what a route notes in the scope
        try:
            with anyio.CancelScope() as stream:
                await self._app(scope, receive, send_headers)
        finally:
            scope["method"] = "HEAD"


class BodyLimit(_Middleware):
    """Refuses bodies over the limit, by ``Content-Length`` before a byte is read, else while reading, and
    bodies that come too slowly."""

    def __init__(self, app: ASGIApp, settings: Settings, larger: Mapping[str, str]) -> None:
        """``larger`` names the setting with the limit of paths other than ``max_json_bytes``."""
        super().__init__(app)
        self._settings = settings
        self._larger = larger

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._larger.get(scope["path"], "max_json_bytes")
        limit = getattr(self._settings, name)
        detail = f"a body of {shown(scope['method'])} {shown(scope['path'])} may have {limit} bytes ({name})"
        if refusal := _why_refused(Headers(scope=scope), limit, detail):
            await _refuse(refusal, scope, receive, send)
            return
        body = _Body(receive, limit, detail, slowest_bytes(scope["path"]))

        async def send_noted(message: Message) -> None:
            body.answered = body.answered or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, body.receive, send_noted)
        except* Refusal:
            # NOTE: the task of a stream that reads the body may be refused just before another one answers
            if not (body.refused and body.answered):
                raise


def _why_refused(headers: Headers, limit: int, detail: str) -> ProblemDocument | None:
    """Why a body is refused by its headers alone."""
    declared = headers.get("content-length", "0")
    if "content-length" in headers and "transfer-encoding" in headers:
        # NOTE: a proxy may believe the other one, and take what follows for another caller's request.
        return Kind.BAD_REQUEST.document("the request has Content-Length and Transfer-Encoding; use one")
    codings = headers.getlist("content-encoding")
    if packed := ", ".join(one for one in codings if one.lower() != "identity"):
        return Kind.MEDIA_TYPE.document(f"the body is packed by {shown(packed)!r}; use none for requests")
    if declared.isdecimal() and int(declared[:20]) > limit:
        return Kind.TOO_LARGE.document(detail)
    return None


class _Body:
    """The body of one request on its way in.

    Attributes:
        answered: the answer began, and nobody can be told a refusal any more.
        refused: a refusal was raised.
    """

    def __init__(self, receive: Receive, limit: int, detail: str, slowest: int) -> None:
        self._receive = receive
        self._limit = limit
        self._detail = detail
        self._slowest = slowest
        self._total = 0
        self._started = time.monotonic()
        self._whole = False
        self.answered = self.refused = False

    async def receive(self) -> Message:
        """The next message: a part of the body, or after its end what follows. Once ``answered``, a
        disconnect takes the place of a refusal.

        Raises:
            Refusal: the body is too large or comes too slowly.
        """
        if self._whole:
            return await self._receive()
        left = self._started + PATIENCE_S + self._total / self._slowest - time.monotonic()
        with anyio.move_on_after(left) as patience:
            message = await self._receive()
        if patience.cancelled_caught:
            detail = f"the body stopped after {self._total} bytes; send it at {self._slowest} bytes/s or more"
            return self._refused(Kind.BODY_TIMEOUT, detail)
        self._total += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._total > self._limit:
            return self._refused(Kind.TOO_LARGE, self._detail)
        return message

    def _refused(self, kind: Kind, detail: str) -> Message:
        if self.answered:
            return {"type": "http.disconnect"}
        self.refused = True
        raise Refusal(kind, detail, headers={"Connection": "close"})


_METHODS = _SAFE | {"POST", "PUT", "PATCH", "DELETE"}


def _template(scope: Scope) -> str:
    """The path as the route has it, so that ids do not become labels."""
    return str(getattr(scope.get("route"), "path", "none"))


def _caller(scope: Scope) -> dict[str, Any]:
    key_id = scope.get("key_id")
    return {"key": key_id} if key_id else {}
