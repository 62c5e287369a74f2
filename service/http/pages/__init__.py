"""The routes of the page: HTML, forms, and what is live."""

from fastapi import APIRouter

from service.http.pages import now, session


def routers() -> list[APIRouter]:
    """Every router of the page."""
    return [now.router, now.live_router, session.router]
