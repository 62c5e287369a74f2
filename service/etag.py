"""Conditional requests: names of contents, and answers to callers who have them."""

from __future__ import annotations

import hashlib

from fastapi import Response
from pydantic import BaseModel

ASK_FIRST = "no-cache, stale-if-error=86400"
FOREVER = "public, max-age=31536000, immutable"


def has(if_none_match: str | None, tag: str) -> bool:
    """Whether the caller's ``If-None-Match`` says that it has what ``tag`` (without quotes) names."""
    if not if_none_match:
        return False
    tags = [part.strip().removeprefix("W/").strip('"') for part in if_none_match.split(",")]
    return "*" in tags or tag in tags


def matches(if_match: str, tag: str) -> bool:
    """Whether the caller's ``If-Match`` names ``tag`` (without quotes); a weak tag never does."""
    tags = [part.strip().strip('"') for part in if_match.split(",")]
    return "*" in tags or tag in tags


def of(tag: str, caching: str) -> dict[str, str]:
    """The headers of what ``tag`` names; ``caching`` is ``ASK_FIRST`` or ``FOREVER``."""
    return {"ETag": f'"{tag}"', "Cache-Control": caching}


def unchanged(tag: str, caching: str) -> Response:
    """The answer to a caller who has it."""
    return Response(status_code=304, headers=of(tag, caching))


def answer(body: BaseModel, if_none_match: str | None) -> Response:
    """JSON named by its own hash, or 304 for a caller who has it."""
    content = body.model_dump_json().encode()
    tag = hashlib.sha256(content).hexdigest()
    if has(if_none_match, tag):
        return unchanged(tag, ASK_FIRST)
    return Response(content, media_type="application/json", headers=of(tag, ASK_FIRST))
