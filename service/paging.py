"""The ``Link`` header of lists."""

from __future__ import annotations

from fastapi import Request, Response


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Tell where the next page is: this request with another cursor. Nothing where this page is the last."""
    if cursor:
        url = request.url.include_query_params(cursor=cursor)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
