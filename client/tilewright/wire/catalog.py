"""Answers about the service itself: problem documents (RFC 9457), health, families and devices."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class ErrorItem(BaseModel):
    """One broken rule.

    Attributes:
        detail: the rule.
        pointer: JSON pointer into the body, as a URI fragment (``#/m``).
        parameter: name of the query, path or header parameter instead.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class ProblemDocument(BaseModel):
    """Body of every error, ``application/problem+json``.

    Attributes:
        type: stable URI of the kind of error.
        title: the kind in words.
        status: HTTP status.
        detail: what happened and what to do.
        instance: path of the request.
        request_id: also in the header ``X-Request-ID`` and in the log.
        errors: every broken rule of a refused request.
        tune: where a result is missing: a body for ``POST /tune`` that would produce it.
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
    """``status`` is ``ok``; ``checks`` says what was looked at."""

    status: str
    version: str
    checks: dict[str, str] = {}


class KnobView(BaseModel):
    """A knob: every legal value, and those that the tuner tries."""

    name: str
    doc: str
    legal: list[int | str]
    searched: list[int | str]


class SupportView(BaseModel):
    """What a family computes on one device: layouts by element type, or why not."""

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
    """Every family."""

    items: list[FamilyView]


class DeviceView(BaseModel):
    """A device of this service; ``name`` is what ``device`` of a request takes.

    ``state`` is ``idle``, ``tuning`` (then ``job`` tells which job) or ``down``.
    """

    name: str
    model: str
    kind: str
    arch: str
    device_class: str
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    smem_per_block: int
    memory_gbps: int
    clock_mhz: int
    power_watts: int
    mig: str
    driver: str
    state: Literal["idle", "tuning", "down"]
    job: str | None = None


class DeviceList(BaseModel):
    """Every device of this service."""

    items: list[DeviceView]
