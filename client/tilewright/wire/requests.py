"""Requests: bounded numbers and names only, so that no text of a caller reaches a compiler."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tilewright.policy import Policy as SearchPolicy
from tilewright.problem import MAX_EXTENT, Activation, DType, GemmProblem, Layout

Extent = Annotated[int, Field(strict=True, ge=1, le=MAX_EXTENT)]
DeviceName = Annotated[str, Field(pattern=r"^(host|cuda:[0-9]{1,3})$", max_length=8)]
FamilyName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=32)]
KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=128)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Cursor = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=200)]
Factor = Annotated[float, Field(allow_inf_nan=False)]


class Policy(StrEnum):
    """Which stored result may answer for a problem."""

    EXACT = "exact"
    NEAREST = "nearest"


class ProblemFields(BaseModel):
    """A :class:`GemmProblem` on the wire; the defaults are its own."""

    model_config = ConfigDict(from_attributes=True)

    m: Extent
    n: Extent
    k: Extent
    dtype: DType = DType.FLOAT16
    layout: Layout = Layout.NT
    batch: Extent = 1
    out_dtype: DType | None = None
    acc_dtype: DType | None = None
    activation: Activation = Activation.NONE
    has_bias: bool = Field(default=False, strict=True)
    has_c: bool = Field(default=False, strict=True)

    def to_problem(self) -> GemmProblem:
        """The problem.

        Raises:
            InvalidProblem: the types do not go together.
        """
        return GemmProblem(**{name: getattr(self, name) for name in ProblemFields.model_fields})

    @classmethod
    def of(cls, problem: GemmProblem) -> ProblemFields:
        """The inverse of :meth:`to_problem`."""
        return ProblemFields(**problem.to_dict())


class TuneBody(ProblemFields):
    """``POST /tune``.

    Attributes:
        families: kernel families to search; empty for all that support the problem.
        max_trials: measured configs to spend.
        max_seconds: wall-clock bound of the search, 0 for none.
        seed: of every random choice.
        policy: how to search, see :class:`tilewright.policy.Policy`.
        min_gain_per_s: end the search where its last 30 trials gained less than this share of the best
            time per second of the device, 0 for never.
        device: ``cuda:0``, ``host`` and the like; the service's first device unless given.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"m": 128, "n": 128, "k": 128, "dtype": "float32", "layout": "nn", "max_trials": 20}]
        },
    )

    families: list[FamilyName] = Field(default=[], max_length=8)
    max_trials: int = Field(default=100, strict=True, ge=1, le=10_000)
    max_seconds: float = Field(default=0.0, ge=0.0, le=86_400.0, allow_inf_nan=False)
    seed: int = Field(default=0, strict=True, ge=0, le=2**31 - 1)
    policy: SearchPolicy = SearchPolicy.STAGED
    min_gain_per_s: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    device: DeviceName | None = None


class PageQuery(BaseModel):
    """A page of a list: ``cursor`` is the ``next`` of the page before."""

    model_config = ConfigDict(extra="forbid")

    limit: Limit = 50
    cursor: Cursor | None = None


class BestQuery(PageQuery):
    """``GET /best-config``: one result with m, n and k, a list without.

    ``arch`` (``sm_90``) or ``device_class`` (``sm_90-132sm-141gb-700w``) is needed. ``max_regret`` refuses
    near matches that are expected to cost more, and those of unknown cost; ``deterministic`` refuses
    kernels whose bits may differ from launch to launch.
    """

    arch: KeyName | None = None
    device_class: KeyName | None = None
    m: int | None = Field(default=None, ge=1, le=MAX_EXTENT)
    n: int | None = Field(default=None, ge=1, le=MAX_EXTENT)
    k: int | None = Field(default=None, ge=1, le=MAX_EXTENT)
    dtype: DType = DType.FLOAT16
    layout: Layout = Layout.NT
    batch: int = Field(default=1, ge=1, le=MAX_EXTENT)
    out_dtype: DType | None = None
    acc_dtype: DType | None = None
    activation: Activation = Activation.NONE
    has_bias: bool = False
    has_c: bool = False
    policy: Policy = Policy.EXACT
    max_regret: float | None = Field(default=None, ge=0.0, le=1000.0, allow_inf_nan=False)
    deterministic: bool = False

    @model_validator(mode="after")
    def _whole(self) -> BestQuery:
        if self.arch is None and self.device_class is None:
            raise ValueError("give arch or device_class; GET /devices lists those of this service")
        given = [extent is not None for extent in (self.m, self.n, self.k)]
        if any(given) and not all(given):
            raise ValueError("give all of m, n and k for one result, or none of them for the list")
        return self

    def to_problem(self) -> GemmProblem | None:
        """The problem asked for, None for the whole list.

        Raises:
            InvalidProblem: the types do not go together.
        """
        if self.m is None:
            return None
        return GemmProblem(**{name: getattr(self, name) for name in ProblemFields.model_fields})


class GemmQuery(BaseModel):
    """``POST /gemm``: everything that the tensors of the body do not tell.

    ``dtype=tfloat32`` lets float32 tensors be multiplied with 10 bits of mantissa; else leave it out. No
    tensor holds the packed types (``int4``, ``uint4``, ``uint1``, ``sign1``): they are for ``POST /tune``.
    ``policy`` says which tuned kernel may run, ``max_regret`` what one for a near problem may be expected to
    cost, ``deterministic`` that only kernels with the same bits at every launch may; where there is none the
    vendor library runs.
    """

    model_config = ConfigDict(extra="forbid")

    layout: Layout = Layout.NN
    dtype: DType | None = None
    out_dtype: DType | None = None
    acc_dtype: DType | None = None
    activation: Activation = Activation.NONE
    alpha: Factor = 1.0
    beta: Factor = 0.0
    device: DeviceName | None = None
    policy: Policy = Policy.EXACT
    max_regret: float = Field(default=0.1, ge=0.0, le=1000.0, allow_inf_nan=False)
    deterministic: bool = False
