"""Requests: bounded numbers and names only, so that no text from a request reaches a compiler."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WrapValidator, model_validator
from pydantic_core import core_schema

from tilewright.schema.codec import KeyName, encode, gathered
from tilewright.schema.job import MOST_ROWS, OPTIONS, JobStatus, MRange, SearchOptions, TuneRequest, ladder_of
from tilewright.schema.match import MatchOptions
from tilewright.schema.problem import Activation, DType, Extent, GemmProblem, Layout

DeviceName = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,63}/)?(host|cuda:[0-9]{1,3})$", max_length=72)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Cursor = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=200)]
_EXACT = 2**53
Factor = Annotated[float, Field(allow_inf_nan=False)]


def _whole(value: object) -> object:
    """8 for 8.0, which is an integer in JSON; anything else as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value


def _strict(schema: Any) -> Any:
    """A schema of pydantic's core with strict numbers and flags, except in nested models."""
    if schema["type"] == "int":
        return core_schema.no_info_before_validator_function(_whole, {**schema, "strict": True})
    if schema["type"] in ("bool", "float"):
        return {**schema, "strict": True}
    if "fields" in schema:
        return {**schema, "fields": {name: _strict(one) for name, one in schema["fields"].items()}}
    if "schema" in schema:
        return {**schema, "schema": _strict(schema["schema"])}
    return schema


class Body(BaseModel, frozen=True):
    """A JSON body; unknown fields, and text or flags instead of numbers, are refused."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _strict(handler(source))


class ProblemBody(Body, GemmProblem, frozen=True):
    """A body with the fields of a :class:`GemmProblem`."""

    def to_problem(self) -> GemmProblem:
        """The problem.

        Raises:
            InvalidProblem: the types cannot be combined.
        """
        return GemmProblem(**gathered(GemmProblem, self))


class OptionsBody(Body, SearchOptions, frozen=True):
    """A body with the fields of :class:`SearchOptions`."""

    def to_request(self, problem: GemmProblem) -> TuneRequest:
        """The request with these options for a problem."""
        return TuneRequest.of(problem, {name: encode(getattr(self, name)) for name in OPTIONS})


class RangeBody(Body, MRange, frozen=True):
    """A range of M: ``{"first": 1, "last": 8192}`` doubles, with ``step`` it goes up by that."""


_STRICT = ConfigDict(strict=True)
_ONE = TypeAdapter(Extent, config=_STRICT)
_LIST = TypeAdapter(Annotated[list[Extent], Field(min_length=1, max_length=MOST_ROWS)], config=_STRICT)


def _choose_rows(value: Any, _: Any) -> Any:
    # NOTE: chosen here, so that a broken rule is reported for the right kind of value.
    if isinstance(value, list):
        given = [_whole(one) for one in value]
        whole = all(type(one) is int for one in given)
        return _LIST.validate_python(list(dict.fromkeys(given)) if whole else given)
    return RangeBody.model_validate(value) if isinstance(value, dict) else _ONE.validate_python(_whole(value))


Rows = Annotated[Extent | list[Extent] | RangeBody, WrapValidator(_choose_rows)]


class TuneBody(OptionsBody, ProblemBody, frozen=True):
    """``POST /tune``: a problem, or one with several M, which are a ladder; search options and a device.

    Attributes:
        m: rows of D; for a ladder a list of them or a range, at most 64.
        device: ``cuda:0``, ``host`` and the like; the service's first device unless given.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"m": 128, "n": 128, "k": 128, "dtype": "float32", "layout": "nn", "max_trials": 20}]
        },
    )

    m: Rows  # type: ignore[assignment]
    device: DeviceName | None = None

    @property
    def rows(self) -> list[int]:
        """Every M.

        Raises:
            InvalidProblem: a range does not go up.
        """
        if isinstance(self.m, RangeBody):
            return list(itertools.islice(self.m.rows, MOST_ROWS + 1))
        return self.m if isinstance(self.m, list) else [self.m]

    def to_problem(self) -> GemmProblem:
        """The problem, with the largest M.

        Raises:
            InvalidProblem: the types cannot be combined, or a range does not go up.
        """
        return GemmProblem(**gathered(GemmProblem, self, m=max(self.rows)))

    def to_request(self, problem: GemmProblem) -> TuneRequest:
        """The request with these options for a problem and its ladder.

        Raises:
            InvalidProblem: there are too many M.
        """
        return dataclasses.replace(super().to_request(problem), ladder=ladder_of(self.rows))


class PageQuery(BaseModel, frozen=True):
    """A page of a list: ``cursor`` is the ``next`` of the page before."""

    model_config = ConfigDict(extra="forbid")

    limit: Limit = 50
    cursor: Cursor | None = None


class ProblemQuery(BaseModel, GemmProblem, frozen=True):
    """A query that names a problem with the fields of a :class:`GemmProblem`."""

    model_config = ConfigDict(extra="forbid")

    def to_problem(self) -> GemmProblem:
        """The problem.

        Raises:
            InvalidProblem: the types do not go together.
        """
        return GemmProblem(**gathered(GemmProblem, self))


class CancelQuery(BaseModel, frozen=True):
    """``DELETE /jobs``: which of the jobs that have not ended; at least one field is needed.

    Attributes:
        status: ``queued`` or ``running``.
        mine: only those of the caller: of its key, or of its address without keys.
        m, n, k, dtype, layout: of their problems; m of any row of a ladder.
    """

    model_config = ConfigDict(extra="forbid")

    status: JobStatus | None = None
    mine: bool = False
    m: Extent | None = None
    n: Extent | None = None
    k: Extent | None = None
    dtype: DType | None = None
    layout: Layout | None = None

    @property
    def alike(self) -> dict[str, Any]:
        """The given fields of their problems."""
        return self.model_dump(exclude={"status", "mine"}, exclude_none=True)

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if self.status is None and not self.mine and not self.alike:
            raise ValueError("say which jobs: mine=true, a status, or m, n, k, dtype or layout")
        return self


class TargetQuery(BaseModel, frozen=True):
    """The results to search.

    ``arch`` (``sm_90``) or ``device_class`` (``sm_90-132sm-141gb-700w``) is needed.
    """

    arch: KeyName | None = None
    device_class: KeyName | None = None

    @property
    def target(self) -> str:
        """The device class if given, else the architecture."""
        return self.device_class or self.arch or ""

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not self.target:
            raise ValueError("give arch or device_class; GET /devices lists those of this service")
        return self


class LookupQuery(TargetQuery, MatchOptions, frozen=True):
    """The results to search, and limits on them."""


class WinnerQuery(ProblemQuery, TargetQuery, frozen=True):
    """``DELETE /best-config``: the winners of a problem, of one device class or of an architecture."""


class BestQuery(PageQuery, LookupQuery, GemmProblem, frozen=True):
    """``GET /best-config``: one result if m, n and k are given, else a list."""

    m: Extent | None = None  # type: ignore[assignment]
    n: Extent | None = None  # type: ignore[assignment]
    k: Extent | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = [extent is not None for extent in (self.m, self.n, self.k)]
        if any(given) and not all(given):
            raise ValueError("give all of m, n and k for one result, or none of them for the list")
        return self

    def to_problem(self) -> GemmProblem | None:
        """The problem of the request; None for the list.

        Raises:
            InvalidProblem: the types cannot be combined.
        """
        if self.m is None:
            return None
        return GemmProblem(**gathered(GemmProblem, self))


class GemmQuery(BaseModel, MatchOptions, frozen=True):
    """``POST /gemm``: the parameters that the tensors of the body do not hold.

    ``dtype=tfloat32`` allows multiplying float32 tensors with 10 bits of mantissa; leave it out otherwise.
    Tensors cannot hold the packed types (``int4``, ``uint4``, ``uint1``, ``sign1``), which are for ``POST
    /tune``. ``match`` and ``max_regret`` limit the tuned kernels that may run, and ``deterministic`` allows
    only kernels with the same bits at every launch. If no kernel may run, the vendor library does.
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
