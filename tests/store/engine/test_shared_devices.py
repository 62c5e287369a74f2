"""A device that other processes use: its next job waits, tells why, and goes on after ``quiet_wait_s``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_lab import FakeBench, job, submit, wait_for
from fastapi.testclient import TestClient

from service.engine import device_queue
from service.engine.engine import LocalEngine
from service.engine.health import Trouble
from service.server.app import create_app
from service.settings import Settings
from tilewright import wire
from tilewright.schema.job import JobStatus
from tuner.job.context import JobContext
from tuner.store.database import Store

BUSY = ("other processes used 80% of the GPU",)
MakeEngine = Callable[[float], LocalEngine]


@pytest.fixture
def make_engine(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Makes a service's engine whose only device is a stand-in with interference; its jobs find no winner."""
    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    monkeypatch.setattr(device_queue, "_POLL_S", 0.05)
    monkeypatch.setattr(device_queue, "run_job", lambda *_: [])
    made = []

    def make(quiet_wait_s: float) -> LocalEngine:
        given: Any = {"devices": ("host",), "cache_dir": tmp_path, "compile_processes": 1, "stop_s": 0.2}
        engine = LocalEngine(store, Settings(quiet_wait_s=quiet_wait_s, **given))
        made.append(engine)
        engine.open()
        bench_of(engine).interfering = BUSY
        return engine

    yield make
    for engine in made:
        engine.stop()


def bench_of(engine: LocalEngine) -> FakeBench:
    bench: Any = engine.queues["host"].bench
    return bench


def test_a_job_waits_for_others_and_says_so(store: Store, make_engine: MakeEngine) -> None:
    engine, job_id = make_engine(60.0), submit(store)
    engine.start()
    wait_for(lambda: engine.health()["host"].trouble is Trouble.SHARED)
    waiting = job(store, job_id)
    assert waiting.status is JobStatus.RUNNING
    reason = engine.why_waiting(waiting)
    assert reason is not None
    assert reason.startswith(f"{BUSY[0]}; waiting for it, ")
    assert engine.health()["host"].ok
    assert engine.neighbours(waiting) == [f"host: {BUSY[0]}"]
    bench_of(engine).interfering = ()
    wait_for(lambda: job(store, job_id).status.final)
    assert engine.health()["host"].trouble is None
    assert engine.neighbours(job(store, job_id)) == []


@pytest.mark.parametrize("quiet_wait_s", [0.0, 0.3])
def test_a_job_goes_on_interfering_in_the_end(
    store: Store, make_engine: MakeEngine, quiet_wait_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    engine, job_id, began = make_engine(quiet_wait_s), submit(store), time.monotonic()
    engine.start()
    wait_for(lambda: job(store, job_id).status.final)
    assert time.monotonic() - began >= quiet_wait_s
    assert f"job {job_id} runs despite interference on host: {BUSY[0]}" in caplog.text


def test_a_job_that_waits_for_others_ends_at_once_if_it_is_cancelled(
    store: Store, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[JobContext] = []
    monkeypatch.setattr(device_queue, "run_job", lambda context, *_: ran.append(context))
    engine, job_id = make_engine(60.0), submit(store)
    engine.start()
    wait_for(lambda: engine.health()["host"].trouble is Trouble.SHARED)
    engine.cancel(job_id)
    wait_for(lambda: job(store, job_id).status.final)
    assert job(store, job_id).status is JobStatus.CANCELLED
    assert engine.health()["host"].trouble is None
    assert ran == []
    assert "despite interference" not in caplog.text


def test_the_answer_to_tune_names_who_gets_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    app = create_app(
        Settings(database_url=f"sqlite:///{tmp_path}/a.db", devices=("host",), compile_processes=1)
    )
    engine = app.state.service.engine
    try:
        engine.open()  # its queue does not work, so that the job stays in it
        bench_of(engine).interfering = ("process 4711 holds 3.0 GiB of the GPU's memory",)
        visitor = TestClient(app, base_url="http://localhost")
        answer = visitor.post("/tune", json={"m": 64, "n": 64, "k": 64, "dtype": "float32", "layout": "nn"})
        assert answer.status_code == 202, answer.text
        told = ["host: process 4711 holds 3.0 GiB of the GPU's memory"]
        assert answer.json()["neighbours"] == told
        job = wire.JobView.model_validate(visitor.get(answer.headers["location"]).json())
        assert job.neighbours == told
    finally:
        engine.stop()
        app.state.service.served.close()
        app.state.service.store.close()
