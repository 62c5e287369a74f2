"""Misses on the wire: problems that clients ran without a tuned kernel, and the work that follows."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WrapValidator

from tilewright.wire.requests import FamilyName, KeyName, PageQuery, ProblemFields, TuneBody

Micros = Annotated[float, Field(gt=0.0, le=1e12, allow_inf_nan=False)]


class MissReason(StrEnum):
    """Why there is something to tune: no result at all, or one that is no longer current."""

    MISSING = "missing"
    STALE = "stale"


class MissReport(ProblemFields):
    """A problem, how often it ran since the last report, and the vendor library's microseconds if known."""

    model_config = ConfigDict(extra="forbid")

    count: int = Field(default=1, strict=True, ge=1, le=10**9)
    vendor_us: Micros | None = None


class MissesBody(BaseModel):
    """``POST /misses``."""

    model_config = ConfigDict(extra="forbid")

    device_class: KeyName
    misses: list[MissReport] = Field(min_length=1, max_length=250)


class MissAnswer(BaseModel):
    """What became of a report: ``dropped`` are new problems over the limit of the list."""

    noted: int
    dropped: int


class MissQuery(PageQuery):
    """``GET /misses``: a page of the list of one device class, or of all."""

    device_class: KeyName | None = None


class MissView(BaseModel):
    """A problem worth tuning.

    Attributes:
        count: how often it ran without a current result.
        time_us: microseconds of one run: as reported, else estimated.
        measured: whether ``time_us`` was reported.
        stake_s: device seconds at stake, ``count`` times ``time_us``.
    """

    problem: ProblemFields
    device_class: str
    reason: MissReason
    count: int
    time_us: float
    measured: bool
    stake_s: float
    first_seen: datetime
    last_seen: datetime


class MissList(BaseModel):
    """A page of open misses, the largest stake first; ``next`` is the cursor of the next page."""

    items: list[MissView]
    next: str | None = None


class FromMisses(BaseModel):
    """The ``top`` open misses of a device class."""

    model_config = ConfigDict(extra="forbid")

    device_class: KeyName
    top: int = Field(default=10, strict=True, ge=1, le=100)


class TuneMissesBody(BaseModel):
    """``POST /tune`` for misses: a job for each, with the same budget; see :class:`TuneBody`."""

    model_config = ConfigDict(extra="forbid")

    from_misses: FromMisses
    families: list[FamilyName] = Field(default=[], max_length=8)
    max_trials: int = Field(default=100, strict=True, ge=1, le=10_000)
    max_seconds: float = Field(default=0.0, ge=0.0, le=86_400.0, allow_inf_nan=False)
    seed: int = Field(default=0, strict=True, ge=0, le=2**31 - 1)


def _choose(value: Any, _: Any) -> TuneBody | TuneMissesBody:
    # NOTE: chosen by hand, so that a broken rule is reported for the kind of body that was meant.
    if isinstance(value, dict) and "from_misses" in value:
        return TuneMissesBody.model_validate(value)
    return TuneBody.model_validate(value)


AnyTuneBody = Annotated[TuneBody | TuneMissesBody, WrapValidator(_choose)]
