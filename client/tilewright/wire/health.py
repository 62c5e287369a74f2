"""Health answers."""

from __future__ import annotations

from pydantic import BaseModel


class Health(BaseModel):
    """``status`` is ``ok``; ``checks`` says what was looked at."""

    status: str
    version: str
    checks: dict[str, str] = {}
