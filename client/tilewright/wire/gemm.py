"""GEMM requests on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tilewright.schema.problem import MAX_EXTENT
from tilewright.wire.requests import Body, GemmQuery

SEGMENT_HEADER = 64  # bytes of a segment before its tensors; the first 32 are the token
_Size = Annotated[int, Field(ge=1, le=MAX_EXTENT)]


class GemmPost(GemmQuery, frozen=True):
    """``POST /gemm``; ``m``, ``n``, ``k`` and the fields after them are for raw bodies, which hold no shapes.

    Attributes:
        has_c, has_bias: whether C and the bias follow A and B in a raw body.
    """

    m: _Size | None = None
    n: _Size | None = None
    k: _Size | None = None
    batch: _Size = 1
    has_bias: bool = False
    has_c: bool = False


class SharedSegment(BaseModel):
    """Memory of a process: a memfd sealed with ``F_SEAL_SHRINK``, ``F_SEAL_GROW`` and ``F_SEAL_SEAL``.

    Attributes:
        pid: the process that holds it open.
        fd: its descriptor in that process.
        token: what its first 32 bytes are; a caller who can name it may use the memory.
    """

    model_config = ConfigDict(extra="forbid")

    pid: int = Field(strict=True, ge=1, le=2**31 - 1)
    fd: int = Field(strict=True, ge=0, le=2**31 - 1)
    token: str = Field(pattern="^[0-9a-f]{32}$")


class SharedTensor(BaseModel):
    """The location of a row-major tensor: a segment, from byte ``offset`` on."""

    model_config = ConfigDict(extra="forbid")

    segment: SharedSegment
    offset: int = Field(default=SEGMENT_HEADER, strict=True, ge=SEGMENT_HEADER, le=2**48)


class SharedGemmBody(Body, GemmQuery, frozen=True):
    """``POST /gemm/shared``: like ``POST /gemm``, with the tensors in memory that both sides map."""

    m: _Size
    n: _Size
    k: _Size
    batch: _Size = 1
    a: SharedTensor
    b: SharedTensor
    c: SharedTensor | None = None
    bias: SharedTensor | None = None
    d: SharedTensor


class SharedGemmView(BaseModel):
    """A GEMM that ran; its result is in ``d`` of the request."""

    ran: str
    kernel_us: float
