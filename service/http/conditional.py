"""Conditional requests: names of contents, and answers to callers who have them."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastapi import Response
from pydantic import BaseModel

from service.errors import Kind, Refusal

_REFUSED = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*", re.IGNORECASE)
ASK_FIRST = "no-cache, stale-if-error=86400"
FOREVER = "public, max-age=31536000, immutable"


def has(if_none_match: str | None, tag: str) -> bool:
    """Whether the caller's ``If-None-Match`` names ``tag`` (without quotes): it has that content already."""
    if not if_none_match:
        return False
    tags = [part.strip().removeprefix("W/").strip('"') for part in if_none_match.split(",")]
    return "*" in tags or tag in tags


def matches(if_match: str, tag: str) -> bool:
    """Whether the caller's ``If-Match`` names ``tag`` (without quotes); a weak tag never does."""
    tags = [part.strip().strip('"') for part in if_match.split(",")]
    return "*" in tags or tag in tags


def takes(accept_encoding: str | None, coding: str) -> bool:
    """Whether the caller's ``Accept-Encoding`` names a content coding and accepts it."""
    for part in (accept_encoding or "").split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == coding:
            return not _REFUSED.fullmatch(weight)
    return False


def of(tag: str, caching: str) -> dict[str, str]:
    """The headers of the content named ``tag``; ``caching`` is ``ASK_FIRST`` or ``FOREVER``."""
    return {"ETag": f'"{tag}"', "Cache-Control": caching}


def unchanged(tag: str, caching: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a caller who has it; ``headers`` are those that the content would have too."""
    return Response(status_code=304, headers=of(tag, caching) | dict(headers or {}))


def answer(body: BaseModel, if_none_match: str | None) -> Response:
    """JSON named by its own hash, or 304 for a caller who has it."""
    content = body.model_dump_json().encode()
    tag = hashlib.sha256(content).hexdigest()
    if has(if_none_match, tag):
        return unchanged(tag, ASK_FIRST)
    return Response(content, media_type="application/json", headers=of(tag, ASK_FIRST))


class InFlight:
    """The idempotency keys of requests that are in work; safe to share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold a key for the length of a request.

        Raises:
            Refusal: another request holds it.
        """
        with self._lock:
            if key in self._keys:
                detail = "a request with this Idempotency-Key is in work; ask again for its answer"
                raise Refusal(Kind.IDEMPOTENCY_IN_FLIGHT, detail, retry_after=1)
            self._keys.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._keys.discard(key)
