"""The HTTP routes, one file a subject."""

from fastapi import APIRouter

from service.http.routes import (
    best,
    catalog,
    config_sets,
    gemm,
    imports,
    jobs,
    misses,
    pages,
    quarantine,
    trials,
)


def routers() -> list[APIRouter]:
    """Every router of the service."""
    # NOTE: a request is matched with one router after the other; the first are asked most often.
    return [
        catalog.health_router,
        config_sets.current_router,
        config_sets.router,
        jobs.tune_router,
        misses.router,
        jobs.router,
        jobs.events_router,
        best.router,
        best.lookup_router,
        config_sets.artifacts_router,
        imports.router,
        quarantine.router,
        trials.router,
        gemm.router,
        catalog.router,
        catalog.metrics_router,
        pages.router,
    ]
