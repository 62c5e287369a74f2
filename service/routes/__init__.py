"""The HTTP routes, one file a subject."""

from fastapi import APIRouter

from service.routes import (
    artifacts,
    best,
    catalog,
    events,
    gemm,
    health,
    jobs,
    metrics,
    misses,
    sets,
    trials,
    tune,
)


def routers() -> list[APIRouter]:
    """Every router of the service."""
    modules = (tune, misses, jobs, events, best, artifacts, sets, trials, gemm, catalog, health, metrics)
    return [module.router for module in modules]
