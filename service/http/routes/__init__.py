"""The HTTP routes, one file a subject."""

from fastapi import APIRouter

from service.http.routes import best, catalog, config_sets, gemm, jobs, misses, trials


def routers() -> list[APIRouter]:
    """Every router of the service."""
    return [
        jobs.tune_router,
        misses.router,
        jobs.router,
        jobs.events_router,
        best.router,
        config_sets.artifacts_router,
        config_sets.router,
        trials.router,
        gemm.router,
        catalog.router,
        catalog.health_router,
        catalog.metrics_router,
    ]
