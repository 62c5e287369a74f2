"""A server that dies or stops in the middle of a job: the job goes on, no trial is lost."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from pathlib import Path

import httpx2
import pytest
from api_server import Server, finish, start

from tilewright import Client, GemmProblem, wire
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store

PROBLEM = GemmProblem(64, 64, 64, "float32", "nn")
TRIALS = 8


def trials_of(url: str, job_id: str) -> list[wire.Trial]:
    with Client(url) as client:
        return client.trials(job_id, limit=1000).items


def interrupt(server: Server, sign: int) -> tuple[str, list[wire.Trial]]:
    """Start a job, signal the server after its third trial; gives the job and the trials seen by then."""
    with Client(server.url) as client:
        job = client.tune(PROBLEM, max_trials=TRIALS, wait=False)
        deadline = time.monotonic() + 60
        while len(seen := client.trials(job.id, limit=1000).items) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    server.stop(sign)
    return job.id, seen


@pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_job_resumes_with_every_trial(tmp_path: Path, sign: signal.Signals) -> None:
    first = start(tmp_path)
    try:
        started = time.monotonic()
        job_id, before = interrupt(first, sign)
        assert time.monotonic() - started < 70
        if sign is signal.SIGTERM:
            assert first.process.returncode == 0
    finally:
        finish(first)
    second = start(tmp_path)
    try:
        with Client(second.url) as client:
            job = client.wait(job_id)
        assert job.status is wire.JobStatus.SUCCEEDED
        after = trials_of(second.url, job_id)
        assert after[: len(before)] == before
        assert [trial.number for trial in after] == list(range(len(after)))
        assert sum(trial.timing is not None for trial in after) == TRIALS
    finally:
        finish(second)
    assert "Traceback" not in second.log()


def test_ctrl_c_stops_it_within_seconds_while_events_are_followed(tmp_path: Path) -> None:
    server = start(tmp_path)
    try:
        with Client(server.url) as client:
            job = client.tune(GemmProblem(72, 64, 64, "float64", "nn"), max_trials=5000, wait=False)
            asked: list[float] = []

            def stop(progress: wire.JobProgress) -> None:
                if progress.measured and not asked:
                    asked.append(time.monotonic())
                    server.process.send_signal(signal.SIGINT)
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                client.wait(job.id, stop)
        assert server.process.wait(15) == 130
        assert time.monotonic() - asked[0] < 12
    finally:
        finish(server)


@pytest.mark.long
def test_sigterm_does_not_wait_for_a_database_that_another_process_holds(tmp_path: Path) -> None:
    server = start(tmp_path)
    try:
        with Client(server.url) as client:
            running = client.tune(GemmProblem(72, 64, 64, "float64", "nn"), max_trials=5000, wait=False)
            while not client.trials(running.id).items:
                time.sleep(0.02)
        with contextlib.closing(sqlite3.connect(tmp_path / "tilewright.db", isolation_level=None)) as held:
            held.execute("BEGIN IMMEDIATE")
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
            assert time.monotonic() - started <= 25, "after 30 s a supervisor would kill it"
    finally:
        finish(server)
    second = start(tmp_path)
    try:
        with Client(second.url) as client:
            assert client.job(running.id).status in (JobStatus.QUEUED, JobStatus.RUNNING)
            client.cancel(running.id)
    finally:
        finish(second)


@pytest.mark.long
def test_sigterm_tells_followers_to_come_back_and_leaves_every_job(tmp_path: Path) -> None:
    """Fifty jobs, one of them running and followed: all of them are there for the next start."""
    server = start(tmp_path)
    try:
        with Client(server.url) as client:
            running = client.tune(GemmProblem(72, 64, 64, "float64", "nn"), max_trials=5000, wait=False)
            waiting = [
                client.tune(GemmProblem(8, 8, k, "float64", "nn"), max_trials=1, wait=False)
                for k in range(1, 50)
            ]
            while not client.trials(running.id).items:
                time.sleep(0.02)
        kinds: list[str | None] = []
        with httpx2.stream("GET", f"{server.url}/jobs/{running.id}/events", timeout=30) as response:
            for event in httpx2.EventSource(response):
                if not kinds:
                    started = time.monotonic()
                    server.process.send_signal(signal.SIGTERM)
                kinds.append(event.event)
        assert (kinds[-1], "done" in kinds) == ("retry", False)
        assert server.process.wait(15) == 0
        assert time.monotonic() - started <= 10
    finally:
        finish(server)
    assert "Traceback" not in server.log()
    store = Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")
    with store.read() as session:
        kept = [jobs.get(session, job.id) for job in (running, *waiting)]
    store.close()
    assert [job.status for job in kept if job] == [JobStatus.QUEUED] * 50
