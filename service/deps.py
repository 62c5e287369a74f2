"""What handlers ask for."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Path, Request

from service.engine import Engine
from service.problems import Kind, Problem
from service.settings import Settings
from tilewright.tensors import MEDIA_TYPE
from tuner.store.database import Store


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Everything a request works with.

    Attributes:
        gemm_slots: how many GEMM requests may be in work.
    """

    settings: Settings
    store: Store
    engine: Engine
    gemm_slots: threading.BoundedSemaphore


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]


async def _gemm_body(request: Request, service: ServiceDep) -> AsyncIterator[bytes]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != MEDIA_TYPE:
        detail = f"the body must be a safetensors file with Content-Type {MEDIA_TYPE}, got {content_type!r}"
        raise Problem(Kind.MEDIA_TYPE, detail)
    if not service.gemm_slots.acquire(blocking=False):
        limit = service.settings.max_gemms
        detail = f"{limit} GEMM requests are in work (max_gemms); try again in a second"
        raise Problem(Kind.DEVICE_BUSY, detail, retry_after=1)
    try:
        yield await request.body()
    finally:
        service.gemm_slots.release()


GemmBody = Annotated[bytes, Depends(_gemm_body)]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="As in the answer of POST /tune")]
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the artifact in hex")]
