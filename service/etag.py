"""Conditional requests."""

from __future__ import annotations


def has(if_none_match: str | None, tag: str) -> bool:
    """Whether the caller's ``If-None-Match`` says that it has what ``tag`` (without quotes) names."""
    if not if_none_match:
        return False
    tags = [part.strip().removeprefix("W/").strip('"') for part in if_none_match.split(",")]
    return "*" in tags or tag in tags
