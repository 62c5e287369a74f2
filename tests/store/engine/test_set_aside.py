"""A device that did not come back after a kill takes no job, says why, and goes on once it is back."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_lab import job, wait_for

from service.engine import device_queue
from service.engine.engine import LocalEngine
from service.engine.health import Trouble
from service.settings import Settings
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import GpuState
from tuner.store import jobs, trials
from tuner.store.database import Store, WritersBusy
from tuner.store.queue import claims
from tuner.workers.bench import Bench
from tuner.workers.device_lock import DeviceLock
from tuner.workers.process import python
from tuner.workers.recovery import DeviceNotStarted, DeviceSetAside, Recovery

BACK = GpuState(0, (), 1980, ())
LOST = GpuState(2**32, (), 1980, (), complete=True)
KEPT = GpuState(0, (), 1980, (), ended=(5,))


class Surroundings:
    """An engine with the host device, watched as a GPU is."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.state = BACK
        cache, quiet = folder / "cache", 0.0
        settings = Settings(devices=("host",), cache_dir=cache, lock_dir=folder, quiet_wait_s=quiet)
        self.engine = LocalEngine(store, settings)
        self.predecessor = DeviceLock(folder, "host")
        self._store = store

    def bench(self, name: str) -> Bench:
        return Bench(name, Recovery(self._read, wait_s=0.0))

    def _read(self) -> GpuState:
        """The state, with the device's own process as the only one that lives."""
        own = [queue.bench._process.pid for queue in self.engine.queues.values()]
        return dataclasses.replace(self.state, processes=(*filter(None, own), *self.state.ended))

    def submit(self, max_trials: int) -> str:
        request = TuneRequest(GemmProblem(48, 48, 48, "float32", "nn"), max_trials=max_trials)
        with self._store.begin() as session:
            job_id = jobs.submit(session, request, self.engine.queues["host"].bench.spec)[0].id
        self.engine.wake()
        return job_id

    def kill(self) -> None:
        pid = self.engine.queues["host"].bench._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_ASIDE_S", "_POLL_S", "_TAKE_OVER_S"):
        monkeypatch.setattr(device_queue, pause, 0.05)


@pytest.fixture
def here(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    made = Surroundings(store, tmp_path)
    monkeypatch.setattr(device_queue, "Bench", made.bench)
    made.engine.start()
    yield made
    made.engine.stop()


@pytest.fixture
def successor(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """It starts while its predecessor has the device."""
    made = Surroundings(store, tmp_path)
    assert made.predecessor.acquire()
    monkeypatch.setattr(device_queue, "Bench", made.bench)
    made.engine.start()
    yield made
    made.engine.stop()


@pytest.mark.parametrize(
    ("databases", "end"),
    [("sqlite", "by itself"), pytest.param("postgresql", "by a release", marks=pytest.mark.long)],
    indirect=["databases"],
)
def test_a_job_waits_for_its_device_and_goes_on_with_its_trials(
    store: Store, here: Surroundings, end: str
) -> None:
    queue = here.engine.queues["host"]
    job_id = here.submit(6)
    wait_for(lambda: _trials(store, job_id) >= 2, 60)
    here.state = LOST
    here.kill()
    wait_for(lambda: queue.health().trouble is Trouble.SET_ASIDE, 60)
    wait_for(lambda: job(store, job_id).status is JobStatus.QUEUED)
    health = here.engine.health()["host"]
    assert not health.ok
    assert "set aside: 4096 MiB of its memory are in use by no process" in health.reason
    assert "down (set aside: " in here.engine.readiness()["host"]
    assert here.engine.why_waiting(job(store, job_id)) == health.reason
    done = _trials(store, job_id)
    if end == "by itself":
        here.state = BACK
    else:
        assert here.engine.release("host")
    wait_for(lambda: job(store, job_id).status is JobStatus.SUCCEEDED, 120)
    wait_for(lambda: here.engine.health()["host"].ok)
    assert not here.engine.release("host")
    assert _trials(store, job_id) > done
    with store.read() as session:
        kept = trials.of_job(session, job_id)
    assert len({trial.config for trial in kept}) == len(kept)


@pytest.mark.long
@pytest.mark.parametrize(("state", "end"), [(LOST, "by itself"), (KEPT, "by a release")])
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_service_whose_predecessor_was_killed_waits_for_its_memory(
    store: Store, successor: Surroundings, state: GpuState, end: str
) -> None:
    queue = successor.engine.queues["host"]
    wait_for(lambda: queue.health().trouble is Trouble.IN_USE)
    job_id = successor.submit(2)
    successor.state = state
    successor.predecessor.release()
    wait_for(lambda: queue.health().trouble is Trouble.SET_ASIDE)
    assert "down (set aside: " in successor.engine.readiness()["host"]
    assert job(store, job_id).status is JobStatus.QUEUED
    assert _trials(store, job_id) == 0
    if end == "by itself":
        successor.state = BACK
    else:
        assert successor.engine.release("host")
    wait_for(lambda: job(store, job_id).status is JobStatus.SUCCEEDED, 120)
    assert queue.health().ok


@pytest.mark.parametrize("error", [WritersBusy("busy"), KeyError("status")])
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_device_set_aside_goes_on_where_its_job_cannot_be_given_back(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    queue, turns = here.engine.queues["host"], threading.Semaphore(0)

    def lost() -> None:
        raise DeviceSetAside("lost")

    def broken(*_: object) -> None:
        turns.release()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(queue, "_step", lost)
        patch.setattr(claims, "requeue_interrupted", broken)
        assert all(turns.acquire(timeout=10) for _ in range(3))
        wait_for(lambda: queue.health().trouble is Trouble.SET_ASIDE)
    wait_for(lambda: queue.health().ok)


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_device_that_does_not_start_takes_no_job(
    store: Store, here: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = here.engine.queues["host"]
    wait_for(lambda: queue.health().ok)

    def dead() -> None:
        raise DeviceNotStarted("the process of host does not start")

    with monkeypatch.context() as patch:
        patch.setattr(queue.bench, "come_back", dead)
        wait_for(lambda: queue.health().trouble is Trouble.FAILED)
        job_id = here.submit(2)
        time.sleep(0.5)
        assert job(store, job_id).status is JobStatus.QUEUED
        assert "does not start" in queue.health().reason
    wait_for(lambda: job(store, job_id).status is JobStatus.SUCCEEDED, 120)


DIES = "import time; time.sleep(0.5); raise SystemExit(1)"
REFUSES = """
import sys, time
from tilewright.errors import DeviceUnavailable
from tuner.workers.server import serve

def start():
    time.sleep(0.5)
    raise DeviceUnavailable("no CUDA device 0")

serve(sys.argv[-1].removeprefix("--pipes="), start)
"""


@pytest.mark.parametrize("end", [JobStatus.SUCCEEDED, JobStatus.CANCELLED, JobStatus.QUEUED])
@pytest.mark.parametrize("how", [DIES, REFUSES], ids=["dies", "refuses"])
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_job_does_not_fail_with_a_device_that_does_not_start(
    store: Store, here: Surroundings, how: str, end: JobStatus
) -> None:
    queue = here.engine.queues["host"]
    job_id = here.submit(30)
    wait_for(lambda: _trials(store, job_id) >= 2, 60)
    command, pid = list(queue.bench._process._argv), queue.bench._process.pid
    queue.bench._process._argv[:] = python("-c", how)
    here.kill()
    wait_for(lambda: queue.bench._process.pid not in (None, pid))
    if end is JobStatus.QUEUED:
        here.engine.stop()
    elif end is JobStatus.CANCELLED:
        with store.begin() as session:
            jobs.request_cancel(session, job_id)
        here.engine.cancel(job_id)
    else:
        wait_for(lambda: job(store, job_id).status is JobStatus.QUEUED)
        wait_for(lambda: "does not start" in queue.health().reason)
    queue.bench._process._argv[:] = command
    wait_for(lambda: job(store, job_id).status is end, 120)
    assert job(store, job_id).error is None


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_helper_whose_device_does_not_start_gives_its_trials_back(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, left = here.engine.queues["host"], threading.Event()

    def dead() -> None:
        raise DeviceNotStarted("the process of host does not start")

    assert queue._helper is not None
    with monkeypatch.context() as patch:
        patch.setattr(queue._helper, "leave", left.set)
        patch.setattr(queue.bench, "come_back", dead)
        assert left.wait(10)


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_stop_frees_the_device_where_too_many_others_write(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise WritersBusy("busy")

    queue = here.engine.queues["host"]
    wait_for(lambda: queue.health().ok)
    with monkeypatch.context() as patch:
        patch.setattr(claims, "requeue_interrupted", busy)
        here.engine.stop()
    assert not queue.alive
    assert queue._lock.acquire(), "another queue takes the device"
    queue._lock.release()


def _trials(store: Store, job_id: str) -> int:
    with store.read() as session:
        return trials.count(session, job_id)
