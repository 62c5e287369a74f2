"""``/families`` and ``/devices``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from kernels.family import Family
from kernels.registry import FAMILIES
from service.deps import ServiceDep
from service.lane import Lane
from service.openapi import errors
from tilewright import wire
from tilewright.problem import OPERAND_TYPES, DType, GemmProblem, Layout

router = APIRouter(tags=["catalog"])
_PROBE = 1024


@router.get("/families", operation_id="families", responses=errors())
def get_families(service: ServiceDep) -> wire.FamilyList:
    """The kernel families: knobs with their legal values, and what each computes on each device."""
    lanes = list(service.engine.lanes.values())
    return wire.FamilyList(items=[_family_view(family, lanes) for family in FAMILIES.values()])


@router.get("/devices", operation_id="devices", responses=errors())
def get_devices(service: ServiceDep) -> wire.DeviceList:
    """The devices of this service."""
    return wire.DeviceList(items=[_device_view(lane) for lane in service.engine.lanes.values()])


def _family_view(family: Family[Any], lanes: list[Lane]) -> wire.FamilyView:
    knobs = [
        wire.KnobView(name=knob.name, doc=knob.doc, legal=list(knob.legal), searched=list(knob.values))
        for knob in family.knobs
    ]
    support = [_support(family, lane, dtype) for lane in lanes for dtype in OPERAND_TYPES]
    return wire.FamilyView(
        name=family.name, doc=family.doc, device_kind=family.device_kind, knobs=knobs, support=support
    )


def _support(family: Family[Any], lane: Lane, dtype: DType) -> wire.SupportView:
    probes = {layout: GemmProblem(_PROBE, _PROBE, _PROBE, dtype, layout) for layout in Layout}
    reasons = {name: family.why_unsupported(probe, lane.bench.spec) for name, probe in probes.items()}
    layouts = [layout.value for layout, reason in reasons.items() if reason is None]
    why_not = None if layouts else next(iter(reasons.values()))
    return wire.SupportView(device=lane.name, dtype=dtype.value, layouts=layouts, why_not=why_not)


def _device_view(lane: Lane) -> wire.DeviceView:
    spec, job_id = lane.bench.spec, lane.job_id
    state = "down" if not lane.alive else "tuning" if job_id else "idle"
    fields = spec.to_dict() | {
        "name": lane.name,
        "model": spec.name,
        "device_class": spec.device_class.id,
        "driver": lane.bench.driver,
        "state": state,
        "job": job_id,
    }
    return wire.DeviceView.model_validate(fields)
