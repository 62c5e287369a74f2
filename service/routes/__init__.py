"""The HTTP routes, one file a subject."""

from fastapi import APIRouter

from service.routes import artifacts, best, catalog, events, gemm, health, jobs, tune


def routers() -> list[APIRouter]:
    """Every router of the service."""
    modules = (tune, jobs, events, best, artifacts, gemm, catalog, health)
    return [module.router for module in modules]
