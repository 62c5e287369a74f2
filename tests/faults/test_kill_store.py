"""``kill -9`` while trials are recorded: whatever was reported as committed is there afterwards."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Trial
from tuner.store import entities, jobs
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.trials import JobRecorder

HOST = DeviceSpec("host", "x86_64_v3", "Some CPU", sm_count=2, memory_bytes=1 << 30, l2_bytes=1 << 20)
WORKER = Path(__file__).with_name("record_trials.py")
KILLS = 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def record_until_killed(path: Path, seconds: float) -> tuple[int, int]:
    """Trials that the worker found, and how many there were when it last said so before it was killed."""
    command = [sys.executable, str(WORKER), f"sqlite:///{path}", HOST.device_class.id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        first = worker.stdout.readline().split()
        time.sleep(seconds if first else 0)
        worker.kill()
        lines = worker.stdout.read().split("\n")[:-1]
        assert (first[:1], worker.wait()) == (["resumed"], -signal.SIGKILL), worker.stderr.read()
    found = int(first[1])
    return found, int(lines[-1]) + 1 if lines else found


def check(store: Store, job_id: str) -> list[Trial]:
    """Whatever is committed is whole: trials without gaps, their artifacts, events and progress."""
    kept = JobRecorder(store, job_id).trials()
    assert [trial.number for trial in kept] == list(range(len(kept)))
    with store.read() as session:
        job = jobs.get(session, job_id)
        log = jobs.events_after(session, job_id, limit=10**6)
        assert all(entities.has_artifact(session, trial.artifact or "") for trial in kept)
    assert [event.data["number"] for event in log if event.kind == "trial"] == list(range(len(kept)))
    assert job is not None
    assert (job.progress.measured if job.progress else 0) == len(kept)
    return kept


@pytest.mark.long
def test_nothing_committed_is_lost(path: Path) -> None:
    store = Store.open(f"sqlite:///{path}")
    store.migrate()
    with store.begin() as session:
        job, _ = jobs.submit(session, TuneRequest(GemmProblem(8, 8, 8)), HOST)
    store.close()
    chance = random.Random()
    before = 0
    for kill in range(1, KILLS + 1):
        found, committed = record_until_killed(path, chance.uniform(0.0, 0.4))
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        store = Store.open(f"sqlite:///{path}")
        kept = check(store, job.id)
        with store.read() as session:
            assert jobs.get(session, job.id).attempt == kill
        store.close()
        assert found == before
        # The one more that may be there was committed, but killed before it could be reported.
        assert len(kept) - committed in (0, 1)
        before = len(kept)
    assert before > 0, "every worker was killed before its first trial: nothing was tested"


def test_the_job_comes_back_with_its_trials(path: Path) -> None:
    store = Store.open(f"sqlite:///{path}")
    store.migrate()
    with store.begin() as session:
        job, _ = jobs.submit(session, TuneRequest(GemmProblem(8, 8, 8)), HOST)
    _, committed = record_until_killed(path, 0.2)
    with store.begin() as session:
        assert claims.claim(session, HOST.device_class.id, "new server") is None
        assert claims.requeue_lost(session, HOST.device_class.id, claims.LeaseWatch(30.0, 4.0)) == [job.id]
        claimed = claims.claim(session, HOST.device_class.id, "new server")
    assert claimed is not None
    assert (claimed.id, claimed.attempt, claimed.request) == (job.id, 2, job.request)
    assert len(check(store, job.id)) >= committed > 0
    store.close()
