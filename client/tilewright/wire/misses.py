"""Misses on the wire: problems that clients ran without a tuned kernel, and jobs to tune them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, WrapValidator

from tilewright.schema.codec import KeyName
from tilewright.schema.entries import MissRecord
from tilewright.wire.requests import Body, DeviceName, OptionsBody, PageQuery, ProblemBody, TuneBody

Micros = Annotated[float, Field(gt=0.0, le=1e12, allow_inf_nan=False)]


class MissReport(ProblemBody, frozen=True):
    """A problem, how often it ran since the last report, and the vendor library's microseconds if known."""

    count: int = Field(default=1, ge=1, le=10**9)
    vendor_us: Micros | None = None


class MissesBody(Body, frozen=True):
    """``POST /misses``."""

    device_class: KeyName
    misses: list[MissReport] = Field(min_length=1, max_length=250)


class MissAnswer(BaseModel):
    """The result of a report; ``dropped`` counts new problems over the limit of the list, and those over
    the limits of the service."""

    noted: int
    dropped: int


class MissQuery(PageQuery, frozen=True):
    """``GET /misses``: a page of the list of one device class, or of all."""

    device_class: KeyName | None = None


class MissView(BaseModel, MissRecord, frozen=True):
    __doc__ = MissRecord.__doc__  # GET /openapi.json shows it


class MissList(BaseModel):
    """A page of open misses, the largest stake first; ``next`` is the cursor of the next page."""

    items: list[MissView]
    next: str | None = None


class FromMisses(Body, frozen=True):
    """The ``top`` open misses of a device class."""

    device_class: KeyName
    top: int = Field(default=10, ge=1, le=100)


class TuneMissesBody(OptionsBody, frozen=True):
    """``POST /tune`` for misses: a job for each, on a ladder for those that differ in M alone, with the same
    options.

    Attributes:
        device: a device of the class of the misses; the first one unless given.
    """

    from_misses: FromMisses
    device: DeviceName | None = None


def _choose(value: Any, _: Any) -> TuneBody | TuneMissesBody:
    # NOTE: chosen here, so that a broken rule is reported for the right kind of body.
    if isinstance(value, dict) and "from_misses" in value:
        return TuneMissesBody.model_validate(value)
    return TuneBody.model_validate(value)


AnyTuneBody = Annotated[TuneBody | TuneMissesBody, WrapValidator(_choose)]
