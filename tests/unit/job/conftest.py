"""Fixtures of the tests of jobs."""

from __future__ import annotations

import pytest

from tuner.job import selection, shortlist


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disturbed race runs again at once."""
    monkeypatch.setattr(selection, "_PAUSE_S", 0.01)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races with several of the toy's configs, few of which are close."""
    monkeypatch.setattr(shortlist, "WITHIN", 1.15)
