"""The routes of the page: HTML, forms, and what is live."""

from fastapi import APIRouter

from service.http.pages import configs, now, results, session


def routers() -> list[APIRouter]:
    """Every router of the page."""
    return [results.router, configs.router, now.router, now.live_router, session.router]
