"""The OpenAPI document: what errors look like, and the bodies FastAPI cannot derive."""

from __future__ import annotations

import threading
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.errors import Kind
from service.http.access import needed
from service.http.deps import RAW
from service.http.errors import MEDIA_TYPE
from tilewright.http.tensors import MEDIA_TYPE as SAFETENSORS
from tilewright.wire import ProblemDocument

_REFERENCE = {"$ref": "#/components/schemas/ProblemDocument"}
_ALWAYS = (
    Kind.INVALID_REQUEST,
    Kind.BAD_REQUEST,
    Kind.UNAUTHENTICATED,
    Kind.FORBIDDEN,
    Kind.FOREIGN_ORIGIN,
    Kind.FOREIGN_HOST,
    Kind.BODY_TIMEOUT,
    Kind.TOO_LARGE,
    Kind.INTERNAL,
)
_OF_DATABASE = (Kind.DATABASE_UNAVAILABLE, Kind.STORAGE_FULL)
_BINARY = {"type": "string", "format": "binary"}


def errors(*kinds: Kind, database: bool = True) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with these kinds, and with those of any route.

    ``database`` is false for a route that never asks it.
    """
    described: dict[int | str, dict[str, Any]] = {}
    for kind in (*kinds, *_ALWAYS, *(_OF_DATABASE if database else ())):
        entry = described.setdefault(
            kind.status, {"description": "", "content": {MEDIA_TYPE: {"schema": _REFERENCE}}}
        )
        entry["description"] = "; ".join(filter(None, (entry["description"], kind.value[2])))
    return described


def binary(media_type: str, description: str) -> dict[str, Any]:
    """A response or request body of raw bytes."""
    return {"description": description, "content": {media_type: {"schema": _BINARY}}}


def gemm_bytes(description: str) -> dict[str, Any]:
    """A response or request body of ``POST /gemm``."""
    media = {"schema": _BINARY}
    return {"description": description, "content": {SAFETENSORS: media, RAW: media}}


GEMM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        **gemm_bytes(
            "A safetensors file with tensors a, b and, where wanted, c and bias; or their raw bytes in this "
            "order, then with m, n and k"
        ),
    }
}


def install(app: FastAPI) -> None:
    """Give ``app`` its document."""
    making = threading.Lock()  # NOTE: FastAPI breaks where two threads make one

    def document() -> dict[str, Any]:
        with making:
            if app.openapi_schema is None:
                schema = get_openapi(
                    title=app.title, version=app.version, description=app.description, routes=app.routes
                )
                _add_problem(schema)
                _add_security(schema)
                app.openapi_schema = schema
            return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_problem(schema: dict[str, Any]) -> None:
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = schema["components"]["schemas"]
    schemas.update(problem.pop("$defs", {}))
    schemas["ProblemDocument"] = problem


def _add_security(schema: dict[str, Any]) -> None:
    """Say of each operation which scope its key needs; none is needed on loopback before a key was made."""
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for item in schema["paths"].values():
        for operation in item.values():
            scope = needed(operation.get("operationId"))
            if scope:
                operation["security"] = [{"key": [scope.value]}, {}]
