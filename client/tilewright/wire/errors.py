"""RFC 9457 problem documents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ErrorItem(BaseModel):
    """One broken rule.

    Attributes:
        detail: the rule.
        pointer: JSON pointer into the body, as a URI fragment (``#/m``).
        parameter: name of the query, path or header parameter instead.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class ProblemDocument(BaseModel):
    """Body of every error, ``application/problem+json``.

    Attributes:
        type: stable URI of the kind of error.
        title: the kind in words.
        status: HTTP status.
        detail: what happened and what to do.
        instance: path of the request.
        request_id: also in the header ``X-Request-ID`` and in the log.
        errors: every broken rule of a refused request.
        tune: where a result is missing: a body for ``POST /tune`` that would produce it.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    request_id: str | None = None
    errors: list[ErrorItem] | None = None
    tune: dict[str, int | str | bool | float | None] | None = None
