"""Kernel families and devices on the wire."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from tilewright.wire.results import View


class KnobView(View):
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


class DeviceView(View):
    """A device of this service; ``name`` is what ``device`` of a request takes.

    ``state`` is ``idle``, ``tuning`` (then ``job`` tells which job) or ``down``.
    """

    name: str
    model: str
    kind: str
    arch: str
    device_class: str
    units: int
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
