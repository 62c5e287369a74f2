"""``/health``: alive, and ready to work."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from service.deps import Service, ServiceDep
from service.openapi import errors
from service.problems import Kind, Problem
from tilewright import __version__, wire

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", operation_id="live", responses=errors())
async def live() -> wire.Health:
    """The process answers."""
    return wire.Health(status="ok", version=__version__)


@router.get("/startup", operation_id="startup", responses=errors())
async def startup(service: ServiceDep) -> wire.Health:
    """The database was migrated and every device was opened: nothing listens before. That they still answer
    is for ``ready``."""
    checks = dict.fromkeys(service.engine.lanes, "open")
    return wire.Health(status="ok", version=__version__, checks={"database": "migrated", **checks})


@router.get("/ready", operation_id="ready", responses=errors(Kind.NOT_READY))
def ready(service: ServiceDep) -> wire.Health:
    """The database is at this release's schema and every device is at work."""
    checks = {"database": _database(service)}
    checks |= {name: "ok" if lane.alive else "down" for name, lane in service.engine.lanes.items()}
    if service.engine.stopping.is_set():
        checks["service"] = "stopping"
    bad = {name: state for name, state in checks.items() if state != "ok"}
    if bad:
        told = ", ".join(f"{name} is {state}" for name, state in bad.items())
        raise Problem(Kind.NOT_READY, f"{told}; the service's log says why", retry_after=1)
    return wire.Health(status="ok", version=__version__, checks=checks)


def _database(service: Service) -> str:
    try:
        state = service.store.schema_state()
    except SQLAlchemyError as error:
        return f"unreachable ({type(error).__name__})"
    return "ok" if state == "head" else state
