"""``GET /artifacts/{digest}``."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service import etag
from service.deps import Digest, IfNoneMatch, ServiceDep
from service.openapi import binary, errors
from service.problems import Kind, Problem
from tuner.store import artifacts

router = APIRouter(tags=["results"])
_MEDIA_TYPE = "application/octet-stream"


@router.get(
    "/artifacts/{digest}",
    operation_id="artifact",
    response_class=Response,
    responses={
        200: binary(_MEDIA_TYPE, "Launch plan and binary; its SHA-256 is the digest"),
        304: {"description": "The caller has it"},
        **errors(Kind.NOT_FOUND),
    },
)
def get_artifact(digest: Digest, service: ServiceDep, if_none_match: IfNoneMatch = None) -> Response:
    """A compiled kernel with its launch plan."""
    with service.store.read() as session:
        if etag.has(if_none_match, digest) and artifacts.has(session, digest):
            return etag.unchanged(digest, etag.FOREVER)
        data = artifacts.get(session, digest)
    if data is None:
        raise Problem(Kind.NOT_FOUND, f"there is no artifact {digest}; GET /best-config links those in use")
    return Response(data, media_type=_MEDIA_TYPE, headers=etag.of(digest, etag.FOREVER))
