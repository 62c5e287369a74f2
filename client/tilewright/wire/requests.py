"""Requests: bounded numbers and names only, so that no text of a caller reaches a compiler."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tilewright.schema.codec import KeyName, encode, gathered
from tilewright.schema.job import OPTIONS, SearchOptions, TuneRequest
from tilewright.schema.problem import Activation, DType, Extent, GemmProblem, Layout

DeviceName = Annotated[str, Field(pattern=r"^(host|cuda:[0-9]{1,3})$", max_length=8)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Cursor = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=200)]
Factor = Annotated[float, Field(allow_inf_nan=False)]


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of pydantic's core whose integers and flags, other than in nested models, are strict."""
    if schema["type"] in ("int", "bool"):
        return {**schema, "strict": True}
    if "fields" in schema:
        return {**schema, "fields": {name: _strict(one) for name, one in schema["fields"].items()}}
    if "schema" in schema:
        return {**schema, "schema": _strict(schema["schema"])}
    return schema


class Body(BaseModel, frozen=True):
    """A JSON body: unknown fields are refused, and so is text or a flag in the place of a number."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _strict(handler(source))


class Match(StrEnum):
    """Which stored result may answer for a problem."""

    EXACT = "exact"
    NEAREST = "nearest"


class ProblemBody(Body, GemmProblem, frozen=True):
    """A body that names a problem with the fields of a :class:`GemmProblem`."""

    def to_problem(self) -> GemmProblem:
        """The problem.

        Raises:
            InvalidProblem: the types do not go together.
        """
        return GemmProblem(**gathered(GemmProblem, self))


class OptionsBody(Body, SearchOptions, frozen=True):
    """A body that says how to search with the fields of :class:`SearchOptions`."""

    def to_request(self, problem: GemmProblem) -> TuneRequest:
        """The request with these options for a problem."""
        return TuneRequest.of(problem, {name: encode(getattr(self, name)) for name in OPTIONS})


class TuneBody(OptionsBody, ProblemBody, frozen=True):
    """``POST /tune``: a problem, how to tune it, and where.

    Attributes:
        device: ``cuda:0``, ``host`` and the like; the service's first device unless given.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"m": 128, "n": 128, "k": 128, "dtype": "float32", "layout": "nn", "max_trials": 20}]
        },
    )

    device: DeviceName | None = None


class PageQuery(BaseModel, frozen=True):
    """A page of a list: ``cursor`` is the ``next`` of the page before."""

    model_config = ConfigDict(extra="forbid")

    limit: Limit = 50
    cursor: Cursor | None = None


class BestQuery(PageQuery, GemmProblem, frozen=True):
    """``GET /best-config``: one result with m, n and k, a list without.

    ``arch`` (``sm_90``) or ``device_class`` (``sm_90-132sm-141gb-700w``) is needed. ``max_regret`` refuses
    near matches that are expected to cost more, and those of unknown cost; ``deterministic`` refuses
    kernels whose bits may differ from launch to launch.
    """

    arch: KeyName | None = None
    device_class: KeyName | None = None
    m: Extent | None = None  # type: ignore[assignment]
    n: Extent | None = None  # type: ignore[assignment]
    k: Extent | None = None  # type: ignore[assignment]
    match: Match = Match.EXACT
    max_regret: float = Field(default=0.1, ge=0.0, le=1000.0, allow_inf_nan=False)
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
        return GemmProblem(**gathered(GemmProblem, self))


class GemmQuery(BaseModel, frozen=True):
    """``POST /gemm``: everything that the tensors of the body do not tell.

    ``dtype=tfloat32`` lets float32 tensors be multiplied with 10 bits of mantissa; else leave it out. No
    tensor holds the packed types (``int4``, ``uint4``, ``uint1``, ``sign1``): they are for ``POST /tune``.
    ``match`` says which tuned kernel may run, ``max_regret`` what one for a near problem may be expected to
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
    match: Match = Match.EXACT
    max_regret: float = Field(default=0.1, ge=0.0, le=1000.0, allow_inf_nan=False)
    deterministic: bool = False
