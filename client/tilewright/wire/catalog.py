"""Answers about the service itself: problem documents (RFC 9457), health, families, devices, quarantine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tilewright.schema.codec import KeyName
from tilewright.schema.device import DeviceFields
from tilewright.schema.entries import QuarantineEntry
from tilewright.wire.requests import PageQuery


class ErrorItem(BaseModel):
    """One broken rule.

    Attributes:
        detail: the rule and how it is broken.
        pointer: JSON pointer into the body, as a URI fragment (``#/m``).
        parameter: name of the query, path or header parameter, instead of a pointer.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class ProblemDocument(BaseModel):
    """Body of every error, ``application/problem+json``.

    Attributes:
        type: stable URI of the kind of error.
        title: the kind of error in words.
        status: HTTP status.
        detail: what happened and what to do.
        instance: path of the request.
        request_id: also in the header ``X-Request-ID`` and in the log.
        errors: every broken rule of a refused request.
        tune: if a result is missing, a body for ``POST /tune`` that would produce it.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str = ""
    instance: str | None = None
    request_id: str | None = None
    errors: list[ErrorItem] | None = None
    tune: dict[str, int | str | bool | float | None] | None = None


class Health(BaseModel):
    """The health of the service: ``status`` is ``ok``; ``checks`` names the checks."""

    status: str
    version: str
    checks: dict[str, str] = {}


class KnobView(BaseModel):
    """A knob: its legal values, and those that the tuner tries."""

    name: str
    doc: str
    legal: list[int | str]
    searched: list[int | str]


class SupportView(BaseModel):
    """The layouts that a family computes on one device by element type, or the reason why none."""

    device: str
    dtype: str
    layouts: list[str]
    why_not: str | None = None


class FamilyView(BaseModel):
    """A kernel family with its config space."""

    name: str
    doc: str
    device_kind: str
    knobs: list[KnobView]
    support: list[SupportView]


class FamilyList(BaseModel):
    """Every kernel family."""

    items: list[FamilyView]


class DeviceView(BaseModel, DeviceFields, frozen=True):
    """A device of this service.

    Attributes:
        name: the value for ``device`` of a request.
        model: the ``name`` of its :class:`tilewright.schema.device.DeviceSpec`.
        state: ``idle``, ``tuning`` (``job`` is the job) or ``down``.
        detail: what keeps the device from its work, such as a full disk or another service that uses it.
        set_aside: it is a GPU that did not come back after its process was killed, as ``detail`` says.
    """

    model: str
    device_class: str
    driver: str
    state: Literal["idle", "tuning", "down"]
    job: str | None = None
    detail: str | None = None
    set_aside: bool = False


class DeviceList(BaseModel):
    """Every device of this service."""

    items: list[DeviceView]


class QuarantineQuery(PageQuery, frozen=True):
    """``GET /quarantine``: a page of the entries of one device class, or of all."""

    device_class: KeyName | None = None


class QuarantineView(BaseModel, QuarantineEntry, frozen=True):
    """A config that broke a device class, with the evidence.

    Attributes:
        staleness: ``fresh`` while it holds here; else what changed, so that the config is tried again.
    """

    staleness: str


class QuarantineList(BaseModel):
    """A page of entries, the newest first; ``next`` is the cursor of the next page."""

    items: list[QuarantineView]
    next: str | None = None
