"""What wraps every request: an id, and the body limit."""

from __future__ import annotations

import re
import secrets

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import Kind, Problem, respond
from service.settings import Settings

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


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

        await self._app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies over the limit: by ``Content-Length`` before a byte is read, else while reading."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = "max_body_bytes" if scope["path"] == "/gemm" else "max_json_bytes"
        limit = getattr(self._settings, name)
        detail = f"a body of {scope['method']} {scope['path']} may have {limit} bytes ({name})"
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > limit:
            response = respond(Request(scope), Kind.TOO_LARGE.document(detail), {"Connection": "close"})
            await response(scope, receive, send)
            return
        await self._app(scope, _counted(receive, limit, detail), send)


def _counted(receive: Receive, limit: int, detail: str) -> Receive:
    total = 0

    async def receive_counted() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > limit:
            raise Problem(Kind.TOO_LARGE, detail)
        return message

    return receive_counted
