"""``GET /metrics``."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.deps import ServiceDep
from service.openapi import errors

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"description": "As Prometheus reads it", "content": {"text/plain": {}}}, **errors()},
)
def get_metrics(service: ServiceDep) -> Response:
    """Counters and gauges of this service for Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
