"""``POST /gemm`` and ``POST /gemm/shared``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.errors import Kind, Refusal
from service.gemm import operands
from service.gemm.run import GemmResult
from service.http.access import is_loopback
from service.http.deps import RAW, GemmBody, GemmBytes, GemmSlot, ServiceDep
from service.http.openapi import GEMM_BODY, errors, gemm_bytes
from tilewright.wire.gemm import GemmPost, SharedGemmBody, SharedGemmView
from tilewright.wire.safetensors import header

router = APIRouter(tags=["gemm"])
_CHUNK = 2**20
_REFUSALS = (
    Kind.INVALID_PROBLEM,
    Kind.UNSUPPORTED,
    Kind.OVER_LIMIT,
    Kind.TOO_MANY_GEMMS,
    Kind.DEVICE_BUSY,
    Kind.DEVICE_FAILED,
)


@router.post(
    "/gemm",
    operation_id="gemm",
    response_class=Response,
    openapi_extra=GEMM_BODY,
    responses={
        200: gemm_bytes(
            "A safetensors file with tensor d, its metadata says what ran; or the raw bytes of d"
        ),
        **errors(Kind.MEDIA_TYPE, *_REFUSALS),
    },
)
def post_gemm(
    query: Annotated[GemmPost, Query()],
    given: GemmBody,
    slot: GemmSlot,  # noqa: ARG001
    service: ServiceDep,
) -> Response:
    """Compute D = act(alpha * op(A) op(B) + beta * C + bias) with the best kernel known.

    The headers ``Tilewright-Ran`` and ``Tilewright-Kernel-Us`` say what ran and for how many microseconds,
    ``Tilewright-Match`` how it was found, ``Server-Timing`` where the milliseconds of the request went. The
    answer has the body's own media type.
    """
    raw = given.media_type == RAW
    found = operands.raw(given.body, query) if raw else operands.safetensors(given.body, query)
    served = service.gemms.run(found, query, given.result)
    metadata = {"ran": served.ran, "kernel_us": f"{served.micros:.3f}"}
    head = b"" if raw else header({"d": (served.d.dtype, served.d.shape)}, metadata)
    headers = served.headers(given.body_s) | {"Content-Length": str(len(head) + served.d.region.size)}
    return StreamingResponse(_stream(head, given), media_type=given.media_type, headers=headers)


@router.post("/gemm/shared", operation_id="gemm_shared", responses=errors(Kind.FORBIDDEN, *_REFUSALS))
def post_gemm_shared(
    body: SharedGemmBody,
    service: ServiceDep,
    request: Request,
    response: Response,
    slot: GemmSlot,  # noqa: ARG001
) -> SharedGemmView:
    """As ``POST /gemm``, for a process of this machine and user, on tensors in shared memory.

    Offered where the setting ``shared_memory`` says so. A segment is a memfd, sealed with ``F_SEAL_SHRINK``,
    ``F_SEAL_GROW`` and ``F_SEAL_SEAL``, that starts with a token of 32 hexadecimal digits; tensors lie from
    byte 64 on, ``d`` in a segment of its own.
    """
    peer = request.client.host if request.client else ""
    if not service.settings.shared_memory or not is_loopback(peer):
        detail = "shared memory is offered on loopback only, where TILEWRIGHT_SHARED_MEMORY=1; use POST /gemm"
        raise Refusal(Kind.FORBIDDEN, detail)
    with operands.shared(body) as found:
        served: GemmResult = service.gemms.run(found, body, None)
    response.headers.update(served.headers(0.0))
    return SharedGemmView(ran=served.ran, kernel_us=served.micros)


async def _stream(head: bytes, given: GemmBytes) -> AsyncIterator[bytes]:
    if head:
        yield head
    for offset in range(0, given.result.region.size, _CHUNK):
        yield given.result.read(offset, _CHUNK)
