"""Fixtures of the tests of jobs."""

from __future__ import annotations

import pytest

from tuner.job import selection


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races with several of the toy's configs, few of which are close."""
    monkeypatch.setattr(selection, "WITHIN", 1.15)
