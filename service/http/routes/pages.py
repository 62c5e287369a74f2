"""The API's own description: ``/openapi.json``, and the pages that show it, without a file from elsewhere."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response

router = APIRouter(include_in_schema=False)
_FILES = files("fastapi_offline") / "static"
_LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"
_NOTHING = b"data:image/gif;base64,R0lGODlhAQABAAAAACw="  # a picture of one transparent pixel
_START = b'SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});\n'
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>tilewright</title><link rel="icon" href="data:,">{head}</head>
<body>{body}</body>
</html>
"""
# NOTE: both pages set styles on their elements; Redoc searches in a worker that it makes from a blob.
_GUARDS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; worker-src blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}


@router.get("/openapi.json", operation_id="openapi")
def openapi(request: Request) -> JSONResponse:
    """The OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/docs", operation_id="docs")
async def docs() -> Response:
    """A page to try the routes, by Swagger UI."""
    style = '<link rel="stylesheet" href="docs/swagger-ui.css">'
    scripts = '<script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script>'
    return _page(style, f'<div id="page"></div>{scripts}')


@router.get("/redoc", operation_id="redoc")
async def redoc() -> Response:
    """A page to read, by Redoc."""
    script = '<script src="docs/redoc.standalone.js"></script>'
    return _page("", f'<redoc spec-url="openapi.json" disable-google-font="true"></redoc>{script}')


@router.get("/docs/start.js", operation_id="docs_start")
async def start() -> Response:
    """The script that shows the document on ``/docs``."""
    return Response(_START, media_type="text/javascript", headers=_GUARDS)


@router.get("/docs/{name}", operation_id="docs_file")
async def file(
    name: Literal["swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js"],
) -> Response:
    """A file of Swagger UI or Redoc."""
    if name == "redoc.standalone.js":
        return Response(_redoc(), media_type="text/javascript", headers=_GUARDS)
    return FileResponse(str(_FILES / name), headers=_GUARDS)


@functools.cache
def _redoc() -> bytes:
    """Redoc without the one address of another machine that it would ask: that of its maker's logo."""
    return _FILES.joinpath("redoc.standalone.js").read_bytes().replace(_LOGO, _NOTHING)


def _page(head: str, body: str) -> Response:
    return Response(_PAGE.format(head=head, body=body), media_type="text/html", headers=_GUARDS)
