"""GEMMs on request."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tilewright.schema.problem import MAX_EXTENT
from tilewright.wire.requests import GemmQuery

SEGMENT_PREFIX = "tilewright_"
_Size = Annotated[int, Field(ge=1, le=MAX_EXTENT)]


class GemmPost(GemmQuery, frozen=True):
    """``POST /gemm``; ``m``, ``n``, ``k`` and what follows are for raw bodies, which tell no shape.

    Attributes:
        has_c, has_bias: C, then the bias follow A and B in a raw body.
    """

    m: _Size | None = None
    n: _Size | None = None
    k: _Size | None = None
    batch: _Size = 1
    has_bias: bool = False
    has_c: bool = False


class SharedTensor(BaseModel):
    """Where a tensor lies: in a POSIX shared-memory segment, from byte ``offset`` on, row-major."""

    model_config = ConfigDict(extra="forbid")

    segment: str = Field(pattern=f"^{SEGMENT_PREFIX}[A-Za-z0-9]{{8,64}}$")
    offset: int = Field(default=0, strict=True, ge=0, le=2**48)


class SharedGemmBody(GemmQuery, frozen=True):
    """``POST /gemm/shared``: as ``POST /gemm``, with the tensors in memory that both sides map."""

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
    """A GEMM that ran: its result is in ``d`` of the request."""

    ran: str
    kernel_us: float
