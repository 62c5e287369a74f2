"""The OpenAPI document: what errors look like, and the bodies FastAPI cannot derive."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.problems import MEDIA_TYPE, Kind
from tilewright.tensors import MEDIA_TYPE as SAFETENSORS
from tilewright.wire import ProblemDocument

_REFERENCE = {"$ref": "#/components/schemas/ProblemDocument"}
_BINARY = {"type": "string", "format": "binary"}


def errors(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with these kinds, and with those of any route."""
    always = (Kind.INVALID_REQUEST, Kind.BAD_REQUEST, Kind.TOO_LARGE, Kind.INTERNAL)
    described: dict[int | str, dict[str, Any]] = {}
    for kind in (*kinds, *always):
        entry = described.setdefault(
            kind.status, {"description": "", "content": {MEDIA_TYPE: {"schema": _REFERENCE}}}
        )
        entry["description"] = "; ".join(filter(None, (entry["description"], kind.value[2])))
    return described


def binary(media_type: str, description: str) -> dict[str, Any]:
    """A response or request body of raw bytes."""
    return {"description": description, "content": {media_type: {"schema": _BINARY}}}


GEMM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        **binary(SAFETENSORS, "A safetensors file with tensors a, b and, where wanted, c and bias"),
    }
}


def install(app: FastAPI) -> None:
    """Give ``app`` its document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _add_problem(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_problem(schema: dict[str, Any]) -> None:
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = schema["components"]["schemas"]
    schemas.update(problem.pop("$defs", {}))
    schemas["ProblemDocument"] = problem
