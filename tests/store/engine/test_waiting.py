"""A device whose database takes no writes, and threads that meet what nobody expects."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from databases import Databases, migrate, opened
from engine_lab import FakeBench, job, submit, wait_for
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from service.engine import device_queue, health
from service.engine.engine import LocalEngine
from service.engine.health import Trouble
from service.settings import Settings
from tilewright.schema.job import JobProgress, JobStatus
from tilewright.schema.trial import BestConfig
from tuner.store import jobs, trials
from tuner.store.database import Store
from tuner.store.engines import sqlite_engine
from tuner.store.queue import claims

TRIALS = 30
Before = Callable[[int], None]


@contextlib.contextmanager
def engine_on(store: Store, folder: Path) -> Iterator[LocalEngine]:
    """A service's engine whose only device is a stand-in."""
    settings = Settings(devices=("host",), cache_dir=folder, compile_processes=1, stop_s=0.2, lease_s=1)
    made = LocalEngine(store, settings)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    monkeypatch.setattr(health, "_FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(health, "_LONGEST_PAUSE_S", 0.2)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Callable[[Before], None]:
    """Has a job record its trials one by one, and call a function before each."""

    def use(before: Before) -> None:
        def run_job(_context: Any, recorder: Any, *_: Any) -> list[BestConfig]:
            for number in range(len(recorder.trials()), TRIALS):
                before(number)
                kernel = samples.artifact(bytes(50_000) + bytes([number]))
                recorder.add_trial(samples.trial(number), kernel)
            recorder.set_progress(JobProgress("done", TRIALS, TRIALS))
            won = samples.best(samples.problem())
            recorder.set_best(won, samples.artifact())
            return [won]

        monkeypatch.setattr(device_queue, "run_job", run_job)

    return use


def recorded(store: Store, job_id: str) -> list[int]:
    with store.read() as session:
        return [trial.number for trial in trials.of_job(session, job_id)]


def check_nothing_was_lost(store: Store, job_id: str) -> None:
    wait_for(lambda: job(store, job_id).status.final, 30)
    ended = job(store, job_id)
    assert (ended.status, ended.attempt) == (JobStatus.SUCCEEDED, 1)
    assert recorded(store, job_id) == list(range(TRIALS))
    with store.read() as session:
        kinds = [one.kind for one in jobs.events_after(session, job_id)]
    assert kinds.count("trial") == TRIALS


@pytest.fixture
def sqlite_store(sqlite_databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store that waits for a lock for 0.2 s only."""
    monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.2)
    with opened(sqlite_databases.copy(migrate)) as store:
        yield store


def test_a_job_waits_for_room_on_a_full_disk_and_loses_nothing(
    sqlite_store: Store, recording: Callable[[Before], None], tmp_path: Path
) -> None:
    """SQLite's own limit of pages makes it refuse as it does where the disk is full."""
    store, most = sqlite_store, 2**31 - 2

    def limit(driver: Any, *_: Any) -> None:
        driver.execute(f"PRAGMA max_page_count = {most}")

    def fill_up(number: int) -> None:
        nonlocal most
        if number == 10:
            with store.engine.connect() as connection:
                most = connection.execute(text("PRAGMA page_count")).scalar_one()

    event.listen(store.engine, "checkout", limit)
    recording(fill_up)
    job_id = submit(store)
    with engine_on(store, tmp_path) as engine:
        engine.start()
        wait_for(lambda: engine.health()["host"].trouble is Trouble.WAITING)
        told = engine.health()["host"]
        assert (told.ok, told.job_id) == (True, job_id)
        assert "its disk is full" in told.reason
        assert "trying again in" in told.reason
        assert engine.why_waiting(job(store, job_id)) is not None
        progress = job(store, job_id).progress
        assert progress is not None
        assert (progress.measured, recorded(store, job_id)) == (10, list(range(10)))
        time.sleep(1.5)  # longer than the lease
        most = 2**31 - 2
        check_nothing_was_lost(store, job_id)
        wait_for(lambda: engine.health()["host"].trouble is None)
        assert engine.why_waiting(job(store, job_id)) is None


def test_a_lock_that_another_process_holds_for_long_fails_no_job(
    sqlite_store: Store, recording: Callable[[Before], None], tmp_path: Path
) -> None:
    store, locked, go_on = sqlite_store, threading.Event(), threading.Event()

    def hold() -> None:
        with opened(str(store.engine.url)) as other, other.begin() as session:
            session.connection()
            locked.set()
            go_on.wait(10)

    def lock(number: int) -> None:
        if number == 10:
            holder.start()
            assert locked.wait(10)

    holder = threading.Thread(target=hold)
    recording(lock)
    job_id = submit(store)
    with engine_on(store, tmp_path) as engine:
        engine.start()
        wait_for(lambda: engine.health()["host"].trouble is Trouble.WAITING)
        assert "another writer holds it" in engine.health()["host"].reason
        go_on.set()
        holder.join()
        check_nothing_was_lost(store, job_id)


def test_a_trial_whose_commit_was_not_answered_is_kept_once(
    sqlite_store: Store,
    recording: Callable[[Before], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = submit(sqlite_store)
    lost = list[int]()

    class LosesAnswers(health.Retry):
        def __call__(self, work: Callable[[], Any], /) -> Any:
            def lose_answer() -> Any:
                before, answer = recorded(sqlite_store, job_id), work()
                if new := recorded(sqlite_store, job_id)[len(before) :]:
                    lost.extend(new)
                    raise OperationalError("COMMIT", {}, Exception("the connection was lost"))
                return answer

            return super().__call__(lose_answer)

    monkeypatch.setattr(device_queue, "Retry", LosesAnswers)
    monkeypatch.setattr(health, "_FIRST_PAUSE_S", 0.01)
    recording(lambda _number: None)
    with engine_on(sqlite_store, tmp_path) as engine:
        engine.start()
        check_nothing_was_lost(sqlite_store, job_id)
    assert lost == list(range(TRIALS))


def test_a_device_goes_on_after_an_error_that_is_no_job_s(
    store: Store, recording: Callable[[Before], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, seen = claims.claim, threading.Event()

    def fails_once(*given: Any) -> Any:
        if not seen.is_set():
            raise ValueError("sampler: must be one of staged, tpe, got 'oracle'")
        return claim(*given)

    monkeypatch.setattr(claims, "claim", fails_once)
    recording(lambda _number: None)
    job_id = submit(store)
    with engine_on(store, tmp_path) as engine:
        engine.start()
        wait_for(lambda: engine.health()["host"].trouble is Trouble.FAILED)
        told = engine.health()["host"]
        assert not told.ok
        assert told.reason.startswith("internal error (ValueError)")  # the log says which
        seen.set()
        check_nothing_was_lost(store, job_id)
        wait_for(lambda: engine.health()["host"].ok)


def test_a_job_that_meets_a_bug_tells_of_this_machine_in_the_log_alone(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run_job(*_: Any) -> None:
        raise FileNotFoundError(2, "No such file", "/home/me/kernel")

    monkeypatch.setattr(device_queue, "run_job", run_job)
    job_id = submit(sqlite_store)
    with engine_on(sqlite_store, tmp_path) as engine:
        engine.start()
        wait_for(lambda: job(sqlite_store, job_id).status is JobStatus.FAILED)
    error = job(sqlite_store, job_id).error or ""
    assert error.startswith("internal error (FileNotFoundError)")
    assert "/home" not in error
    assert "/home/me/kernel" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_shows(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(claims, "claim", leave)
    with engine_on(store, tmp_path) as engine:
        engine.start()
        wait_for(lambda: not engine.health()["host"].ok)
        assert "its thread ended" in engine.health()["host"].reason


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [ValueError("odd"), SystemExit()])
def test_the_heartbeat_goes_on_or_its_end_shows(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    beats = []

    def odd(_queue: device_queue.DeviceQueue) -> None:
        beats.append(1)
        raise end

    monkeypatch.setattr(device_queue.DeviceQueue, "renew", odd)
    with engine_on(store, tmp_path) as engine:
        engine.start()
        wait_for(lambda: len(beats) == 3 or not engine.health()["host"].ok)
        assert engine.health()["host"].ok == isinstance(end, Exception)
