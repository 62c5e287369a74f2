"""A busy device, a full house and a failing service: clear answers that say when to try again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path

import anyio
import httpx2
import numpy as np
import pytest
from api_server import Server, children, finish, start
from engine_lab import FakeBench, wait_for
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.engine import device_queue
from service.http import errors, openapi
from service.metrics import Metrics
from service.server import middleware
from service.server.app import create_app
from service.settings import Settings
from tilewright import Client, GemmProblem
from tilewright.http.tensors import MEDIA_TYPE, from_array, pieces
from tuner.store import database
from tuner.store.access import keys
from tuner.store.queue import claims

BODY = b"".join(pieces({name: from_array(name, np.ones((4, 4))) for name in "ab"}))
SAFETENSORS = {"Content-Type": MEDIA_TYPE}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes one GEMM at a time and does not wait for its device."""
    running = start(tmp_path_factory.mktemp("impatient"), gemm_wait_s=0, max_gemms=1)
    yield running
    finish(running)


def gemm(server: Server) -> httpx2.Response:
    return httpx2.post(f"{server.url}/gemm", content=BODY, headers=SAFETENSORS, timeout=30)


def test_a_busy_device_says_when_to_try_again(impatient: Server) -> None:
    with Client(impatient.url, timeout=30) as client:
        job = client.tune(GemmProblem(256, 256, 256, "float64", "nn"), max_trials=5000, wait=False)
        answers = (gemm(impatient) for _ in range(500))
        busy = next(answer for answer in answers if answer.status_code != 200)
        client.cancel(job.id)
        client.wait(job.id)
    assert busy.status_code == 503
    assert busy.json()["type"] == "urn:tilewright:problem:device-busy"
    assert int(busy.headers["retry-after"]) > 0
    assert gemm(impatient).status_code == 200


def test_too_many_gemms_at_once_are_refused(impatient: Server) -> None:
    """One of two is at work for as long as the device's process is stopped."""
    assert gemm(impatient).status_code == 200
    (worker,) = children(impatient.process.pid, b"tuner.workers.device_worker")
    with ThreadPoolExecutor(2) as pool:
        os.kill(worker, signal.SIGSTOP)
        try:
            done, (other,) = wait([pool.submit(gemm, impatient) for _ in "ab"], 25, FIRST_COMPLETED)
        finally:
            os.kill(worker, signal.SIGCONT)
    (refused,) = (answer.result() for answer in done)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert "max_gemms" in refused.json()["detail"]
    assert other.result().status_code == gemm(impatient).status_code == 200


_SIZE = {"m": 8, "n": 8, "k": 8}
_NDJSON = {"Content-Type": "application/x-ndjson"}


def test_a_change_that_finds_too_many_writers_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that there is nothing to delete, or that the file is damaged."""
    monkeypatch.setattr(database, "_TURN_S", 0.0)
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'x.db'}", cache_dir=tmp_path))
    store = app.state.service.store
    with store.begin() as session:
        _, key = keys.create(session, "test", frozenset({"admin"}))
    http = TestClient(app, base_url="http://localhost", headers={"Authorization": f"Bearer {key}"})
    with closing(store), closing(app.state.service.served), ExitStack() as others:
        while store.writers.acquire(blocking=False):
            others.callback(store.writers.release)
        answers = [
            http.delete("/problems", params=_SIZE),
            http.delete("/best-config", params=_SIZE | {"arch": "sm_90"}),
            http.delete(f"/imports/{'0' * 32}"),
            http.post("/trials", content=b"", headers=_NDJSON),
        ]
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert answer.json()["type"] == "urn:tilewright:problem:database-unavailable"
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_whose_thread_ended_makes_the_service_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'x.db'}",
        cache_dir=tmp_path,
        lock_dir=tmp_path,
        devices=("host",),
        compile_processes=1,
        stop_s=0.2,
    )
    with TestClient(create_app(settings), base_url="http://localhost") as http:
        assert http.get("/health/ready").status_code == 200
        monkeypatch.setattr(claims, "claim", leave)
        wait_for(lambda: http.get("/health/ready").status_code == 503)
        told = http.get("/health/ready")
        assert "host: down (its thread ended; restart the service)" in told.json()["detail"]
        assert http.get("/health/live").status_code == 200


def test_a_programming_error_is_told_without_its_inside() -> None:
    app = FastAPI()
    app.add_middleware(middleware.BodyLimit, settings=Settings(_env_file=None), larger={})
    app.add_middleware(middleware.RequestLog, metrics=Metrics())
    app.add_middleware(middleware.RequestId)
    errors.install(app)
    openapi.install(app)

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret")

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/broken", headers={"X-Request-ID": "r1"})

    response = asyncio.run(ask())
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == response.json()["request_id"] == "r1"
    assert "secret" not in response.text


def test_a_follower_that_hangs_up_is_no_fault_of_the_service() -> None:
    """FastAPI raises what its task meets that sends events; anything else stays an error."""

    async def follow(*raised: Exception) -> None:
        async def app(*_: object) -> None:
            raise ExceptionGroup("of a task group", raised)

        scope = {"type": "http", "method": "GET", "path": "/jobs/1/events"}
        await middleware.RequestLog(app, Metrics())(scope, lambda: None, lambda _: None)  # type: ignore[arg-type]

    asyncio.run(follow(anyio.BrokenResourceError()))
    with pytest.raises(ExceptionGroup, match="of a task group"):
        asyncio.run(follow(anyio.BrokenResourceError(), ValueError("a bug")))
