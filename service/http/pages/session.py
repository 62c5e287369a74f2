"""Signing in and out, and the scripts and styles of the page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from service.errors import Kind, Refusal
from service.http import conditional
from service.http.access import Gate, Scope
from service.http.deps import AcceptEncoding
from service.http.pages.base import Form, PageRoute, see_other, sessions_of, show
from service.web.assets import assets

router = APIRouter(include_in_schema=False, route_class=PageRoute)
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
Digest = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
Name = Annotated[str, Path(pattern="^[a-z.-]{1,40}$")]


@router.get("/static/{digest}/{name}", operation_id="page_asset")
async def asset(digest: Digest, name: Name, accept_encoding: AcceptEncoding = None) -> Response:
    """A script or a style."""
    found = assets().get(name)
    if found is None or found.digest != digest:
        raise Refusal(Kind.NOT_FOUND, "there is no such file in this release; load the page again")
    if conditional.takes(accept_encoding, "gzip"):
        packed = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding", **_FOR_EVER}
        return Response(found.packed, media_type=found.media_type, headers=packed)
    return Response(found.data, media_type=found.media_type, headers={"Vary": "Accept-Encoding", **_FOR_EVER})


@router.get("/sign-in", operation_id="page_sign_in")
async def sign_in(request: Request, next: str = "/") -> Response:
    """The form for a key."""
    return await _form_page(request, _own_path(next))


async def _form_page(request: Request, where: str, wrong: str = "", status: int = 200) -> Response:
    gate: Gate = request.app.state.gate
    free = await run_in_threadpool(gate.is_open)
    return show(request, "sign_in.html", code=status, next=where, wrong=wrong, open=free)


@router.post("/sign-in", operation_id="page_sign_in_form")
async def take_key(request: Request, form: Form) -> Response:
    """Begin a session of a key that opens the service, and end the one before."""
    key, where = form.get("key", "").strip(), _own_path(form.get("next", "/"))
    gate: Gate = request.app.state.gate
    try:
        if not key.isascii() or not key.isprintable():
            raise Refusal(Kind.UNAUTHENTICATED, "a key must have only letters, digits and _")
        admitted = await gate.admit(f"Bearer {key}", Scope.READ)
    except Refusal as refusal:
        return await _form_page(request, where, str(refusal.detail), refusal.status_code)
    answer = see_other(where)
    if earlier := sessions_of(request).signed_in(request):
        await run_in_threadpool(gate.end, earlier)
    if admitted:
        sessions_of(request).begin(request, answer, admitted.id)
    return answer


@router.post("/sign-out", operation_id="page_sign_out")
async def sign_out(request: Request, form: Form) -> Response:
    """End the session, at every server of the database."""
    del form
    sessions, gate, answer = sessions_of(request), request.app.state.gate, see_other("/sign-in")
    if signed_in := sessions.signed_in(request):
        await run_in_threadpool(gate.end, signed_in)
    sessions.forget(request, answer)
    return answer


def _own_path(text: str) -> str:
    """A path of this service, so that no link leads a visitor elsewhere after signing in."""
    own = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if own and text.isascii() else "/"
