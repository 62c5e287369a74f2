"""A short form of what `make soak` runs: the same checks, with fewer processes, jobs and seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contention import claim_all, compilations_and_readers, postgresql, processes, writers_and_readers
from sqlalchemy import event
from store_samples import HOST, HOST_CLASS, artifact, request, trial

from tuner.store import database, jobs
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.trials import JobRecorder

STATEMENTS_A_TRIAL = 8  # with BEGIN
PROCESSES = 5


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with processes(PROCESSES) as started:
        yield started


@pytest.mark.long
def test_writers_and_lookups_are_never_told_that_the_database_is_locked(tmp_path: Path, pool: Any) -> None:
    found = writers_and_readers(tmp_path, 2.0, pool, PROCESSES - 1)
    assert found["trials"] > 4
    assert found["lookups"] == 400


@pytest.mark.long
def test_lookups_are_answered_while_kernels_are_compiled(tmp_path: Path) -> None:
    with processes(1) as one:
        found = compilations_and_readers(tmp_path, 1.5, 8, one)
    assert found["compiled"] > 0
    assert found["lookups"] == 300


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_job_is_claimed_once(tmp_path: Path, pool: Any, kind: str) -> None:
    if kind == "sqlite":
        assert claim_all(f"sqlite:///{tmp_path}/claims.db", 60, pool, PROCESSES)["jobs"] == 60
        return
    with postgresql() as url:
        if url is None:
            pytest.skip("no PostgreSQL here: install the package 'postgresql'")
        assert claim_all(url, 60, pool, PROCESSES)["jobs"] == 60


def test_a_writer_asks_again_soon_however_long_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pauses = Store.open(f"sqlite:///{tmp_path}/one.db"), list[float]()
    store.migrate()
    held, real = threading.Event(), time.sleep

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        real(seconds)

    def hold() -> None:
        with store.begin() as session:
            session.connection()
            held.set()
            real(0.3)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    monkeypatch.setattr(database.time, "sleep", sleep)
    with store.begin() as session:
        session.connection()
    holder.join()
    store.close()
    assert len(pauses) > 10
    assert max(pauses) < 0.02


def test_a_trial_holds_up_other_writers_for_a_few_statements(tmp_path: Path) -> None:
    store, ran = Store.open(f"sqlite:///{tmp_path}/one.db"), list[str]()
    store.migrate()
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        job = claims.claim(session, HOST_CLASS, "one")
    assert job is not None
    recorder = JobRecorder(store, job.id)
    recorder.add_trial(trial(0), artifact())
    event.listen(store.engine, "before_cursor_execute", lambda *given: ran.append(given[2]))
    recorder.add_trial(trial(1), artifact())
    store.close()
    assert len(ran) <= STATEMENTS_A_TRIAL, ran
