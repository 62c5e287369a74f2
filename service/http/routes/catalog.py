"""``/families`` and ``/devices``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from kernels.base.family import Family
from kernels.registry import FAMILIES
from service.engine.base import Queue
from service.engine.health import Trouble
from service.errors import Kind, Refusal
from service.http.deps import ServiceDep, who
from service.http.openapi import errors
from tilewright import __version__, wire
from tilewright.schema.codec import gathered
from tilewright.schema.problem import OPERAND_TYPES, DType, GemmProblem, Layout
from tuner.store.access import audit
from tuner.store.access.audit import Action

router = APIRouter(tags=["catalog"])
_PROBE = 1024


@router.get("/families", operation_id="families", responses=errors())
def get_families(service: ServiceDep) -> wire.FamilyList:
    """The kernel families: knobs with their legal values, and what each computes on each device."""
    queues = list(service.engine.queues.values())
    return wire.FamilyList(items=[_family_view(family, queues) for family in FAMILIES.values()])


@router.get("/devices", operation_id="devices", responses=errors())
def get_devices(service: ServiceDep) -> wire.DeviceList:
    """The devices of this service."""
    return wire.DeviceList(items=[_device_view(queue) for queue in service.engine.queues.values()])


@router.delete(
    "/devices/{name:path}/set-aside",
    operation_id="release_device",
    status_code=204,
    responses=errors(Kind.NOT_FOUND, Kind.UNSUPPORTED),
)
def delete_set_aside(name: wire.DeviceName, service: ServiceDep, request: Request) -> None:
    """Use a device that is set aside as it is, although it did not come back after a kill."""
    if not service.engine.release(name):
        raise Refusal(Kind.NOT_FOUND, f"{name} is not set aside; GET /devices says how each device is")
    with service.store.begin() as session:
        audit.note(session, who(request), Action.RELEASE, name)


def _family_view(family: Family[Any], queues: list[Queue]) -> wire.FamilyView:
    knobs = [
        wire.KnobView(name=knob.name, doc=knob.doc, legal=list(knob.legal), searched=list(knob.values))
        for knob in family.knobs
    ]
    support = [_support(family, queue, dtype) for queue in queues for dtype in OPERAND_TYPES]
    return wire.FamilyView(
        name=family.name, doc=family.doc, device_kind=family.device_kind, knobs=knobs, support=support
    )


def _support(family: Family[Any], queue: Queue, dtype: DType) -> wire.SupportView:
    probes = {layout: GemmProblem(_PROBE, _PROBE, _PROBE, dtype, layout) for layout in Layout}
    reasons = {name: family.why_unsupported(probe, queue.bench.spec) for name, probe in probes.items()}
    layouts = [layout.value for layout, reason in reasons.items() if reason is None]
    why_not = None if layouts else next(iter(reasons.values()))
    return wire.SupportView(device=queue.name, dtype=dtype.value, layouts=layouts, why_not=why_not)


def _device_view(queue: Queue) -> wire.DeviceView:
    spec, health = queue.bench.spec, queue.health()
    state = "down" if not health.ok else "tuning" if health.job_id else "idle"
    fields: dict[str, Any] = {"name": queue.name, "model": spec.name, "device_class": spec.device_class.id}
    fields |= {"driver": queue.bench.driver, "state": state}
    fields |= {"job": health.job_id, "detail": health.reason or None}
    fields |= {"set_aside": health.trouble is Trouble.SET_ASIDE}
    return wire.DeviceView(**gathered(wire.DeviceView, spec, **fields))


health_router = APIRouter(prefix="/health", tags=["health"])


@health_router.get("/live", operation_id="live", responses=errors(database=False))
async def live() -> wire.Health:
    """The process answers."""
    return wire.Health(status="ok", version=__version__)


@health_router.get("/startup", operation_id="startup", responses=errors(database=False))
async def startup(service: ServiceDep) -> wire.Health:
    """The database was migrated and every device was opened: nothing listens before. That they still answer
    is for ``ready``."""
    checks = dict.fromkeys(service.engine.queues, "open")
    return wire.Health(status="ok", version=__version__, checks={"database": "migrated", **checks})


@health_router.get("/ready", operation_id="ready", responses=errors(Kind.NOT_READY, database=False))
async def ready(service: ServiceDep) -> wire.Health:
    """The database is at this release's schema and takes writes, and every device is at work.

    Nothing is looked at for the request: a thread looks at the database once a second.
    """
    checks = {"database": service.health.state}
    checks |= service.engine.readiness()
    if service.engine.stopping.is_set():
        checks["service"] = "stopping"
    bad = {name: state for name, state in checks.items() if state != "ok"}
    if bad:
        states = "; ".join(f"{name}: {state}" for name, state in bad.items())
        raise Refusal(Kind.NOT_READY, f"{states}; the service's log says why", retry_after=1)
    return wire.Health(status="ok", version=__version__, checks=checks)


metrics_router = APIRouter(tags=["health"])


@metrics_router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"description": "As Prometheus reads it", "content": {"text/plain": {}}}, **errors()},
)
def get_metrics(service: ServiceDep) -> Response:
    """Counters and gauges of this service for Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
