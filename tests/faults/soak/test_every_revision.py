"""A short form of what `make soak` runs: every revision up and down, with fewer trials."""

from __future__ import annotations

from pathlib import Path

import pytest
from contention import postgresql
from every_revision import run_all

TRIALS = 1000


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_every_revision_goes_up_and_down_on_many_trials(tmp_path: Path, kind: str) -> None:
    if kind == "sqlite":
        assert run_all(f"sqlite:///{tmp_path}/rows.db", TRIALS)["rows"]["trial"] == TRIALS
        return
    with postgresql() as url:
        if url is None:
            pytest.skip("no PostgreSQL here: install the package 'postgresql'")
        assert run_all(url, TRIALS)["rows"]["trial"] == TRIALS
