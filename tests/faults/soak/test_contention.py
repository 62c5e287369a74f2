"""A short form of what `make soak` runs: the same checks, with fewer processes, jobs and seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from contention import claims, postgresql, writers_and_readers


def test_writers_and_lookups_are_never_told_that_the_database_is_locked(tmp_path: Path) -> None:
    found = writers_and_readers(tmp_path, 3.0, writers=4)
    assert found["trials"] > 4
    assert found["lookups"] == 600


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_job_is_claimed_once(tmp_path: Path, kind: str) -> None:
    if kind == "sqlite":
        assert claims(f"sqlite:///{tmp_path}/claims.db", 60, claimers=4)["jobs"] == 60
        return
    with postgresql() as url:
        if url is None:
            pytest.skip("no PostgreSQL here: install the package 'postgresql'")
        assert claims(url, 60, claimers=4)["jobs"] == 60
