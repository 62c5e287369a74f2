"""What every route of the page does: how HTML goes out, how forms come in, what errors look like."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute

from service.errors import Kind, Refusal
from service.http import errors
from service.http.sessions import Sessions
from service.web import html
from service.web.charts import Chart
from tilewright import __version__

# NOTE: htmx and the charts set styles on elements by script, which the policy allows; none is in the markup.
GUARDS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_FIELDS = 40
_OF_ERRORS = ("Retry-After", "WWW-Authenticate", "Allow", "Connection")


def sessions_of(request: Request) -> Sessions:
    """The sessions of the page."""
    found: Sessions = request.app.state.sessions
    return found


def _visitor(request: Request) -> dict[str, str | None]:
    """The token of a visitor's forms, and the key that signed in, as the gate found it."""
    return {"token": sessions_of(request).token(request), "key_id": request.scope.get("holder")}


async def _form(request: Request) -> dict[str, str]:
    try:
        text = (await request.body()).decode()
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise Refusal(Kind.BAD_REQUEST, f"not a form: {error}; send it from the page") from error
    if not hmac.compare_digest(
        fields.pop("token", "").encode(), sessions_of(request).token(request).encode()
    ):
        detail = "the form does not come from a page of this service in this session; load the page again"
        raise Refusal(Kind.FOREIGN_ORIGIN, detail)
    return fields


Form = Annotated[dict[str, str], Depends(_form)]


def show(
    request: Request,
    template: str,
    here: str = "",
    code: int = 200,
    charts: tuple[Chart, ...] = (),
    **values: Any,
) -> Response:
    """A page; with ``csv=NAME`` in the query the numbers of that chart of it.

    Raises:
        Refusal: the page has no such chart.
    """
    wanted = request.query_params.get("csv")
    if wanted is not None:
        return _csv(charts, wanted)
    visitor = _visitor(request)
    query = "&".join(f"{quote(k)}={quote(v)}" for k, v in request.query_params.items() if k != "csv")
    shown = {chart.name: chart for chart in charts}
    text = html.page(
        template,
        here=here,
        visitor=visitor,
        version=__version__,
        charts=shown,
        csv_query=f"{query}&" if query else "",
        **values,
    )
    return HTMLResponse(text, code, headers=GUARDS)


def _csv(charts: tuple[Chart, ...], name: str) -> Response:
    for chart in charts:
        if chart.name == name:
            headers = {"Content-Disposition": f'attachment; filename="{chart.name}.csv"', **GUARDS}
            return Response(chart.csv, media_type="text/csv; charset=utf-8", headers=headers)
    names = ", ".join(chart.name for chart in charts) or "none"
    raise Refusal(Kind.NOT_FOUND, f"this page has no such chart; use one of {names}")


def see_other(path: str) -> Response:
    """On to another page of this service after a form."""
    return RedirectResponse(path, 303, headers=GUARDS)


class PageRoute(APIRoute):
    """A route whose errors are pages; a visitor without a key is led to the form for one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with errors as pages."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                return _error_page(request, errors.answer(request, error))

        return guarded


def _error_page(request: Request, refusal: Response) -> Response:
    if refusal.status_code == Kind.UNAUTHENTICATED.status and request.method == "GET":
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return see_other(f"/sign-in?next={quote(wanted, safe='')}")
    document = json.loads(bytes(refusal.body))
    values = {name: document.get(name, "") for name in ("title", "detail", "status", "request_id")}
    visitor = _visitor(request)
    text = html.page("error.html", here="", visitor=visitor, version=__version__, **values)
    kept = {name: refusal.headers[name] for name in _OF_ERRORS if name in refusal.headers}
    return HTMLResponse(text, refusal.status_code, headers=GUARDS | kept)
