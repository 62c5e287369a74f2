"""Device queues and their claims: what a stop, a start and a cancellation at a bad moment leave of a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from engine_lab import FakeBench, job, submit, wait_for
from sqlalchemy import update

from service.engine import device_queue, engine, staleness, upkeep
from service.settings import Settings
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.problem import DType
from tilewright.schema.trial import BestConfig
from tuner.store import best as winners
from tuner.store import entities, jobs, misses
from tuner.store.database import Store, ahead
from tuner.store.models import JobRow
from tuner.store.queue import claims
from tuner.store.records import JobRecord

Tune = Callable[[threading.Event, FakeBench], BestConfig | None]


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tune], None]:
    """Replaces what a queue does with a job; an idle one looks for work ten times a second."""
    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    monkeypatch.setattr(device_queue, "_POLL_S", 0.1)
    monkeypatch.setattr(device_queue, "_IDLE_LOOK_S", 0.1)
    monkeypatch.setattr(engine, "list_devices", lambda: ["one", "two", "host"])

    def use(work: Tune) -> None:
        def run_job(context: Any, *_: Any) -> list[BestConfig]:
            best = work(context.cancelled, context.bench)
            return [best] if best else []

        monkeypatch.setattr(device_queue, "run_job", run_job)

    return use


@pytest.fixture
def running(store: Store, tmp_path: Any) -> Iterator[engine.LocalEngine]:
    settings = Settings(devices=("one", "two", "two"), cache_dir=tmp_path, compile_processes=1, stop_s=0.2)
    made = engine.LocalEngine(store, settings)
    yield made
    made.stop()


def test_a_race_that_a_stop_breaks_does_not_fail_the_job(
    store: Store, running: engine.LocalEngine, tuning: Callable[[Tune], None]
) -> None:
    def race(_cancelled: threading.Event, bench: FakeBench) -> None:
        bench.closed.wait(10)
        raise RuntimeError("the worker process was closed")

    tuning(race)
    job_id = submit(store)
    running.start()
    wait_for(lambda: job(store, job_id).status is JobStatus.RUNNING)
    running.stop()
    wait_for(lambda: not any(one.alive for one in running.queues.values()))
    assert job(store, job_id).status is JobStatus.QUEUED


def test_a_start_takes_back_nothing_that_its_own_queues_claimed(
    store: Store,
    running: engine.LocalEngine,
    tuning: Callable[[Tune], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requeue = claims.requeue_lost

    def slowly(*given: Any) -> list[str]:
        time.sleep(0.2)
        return requeue(*given)

    monkeypatch.setattr(claims, "requeue_lost", slowly)
    tuning(lambda cancelled, _bench: cancelled.wait(10) and None)
    ids = [submit(store, seed) for seed in range(2)]
    running.start()
    assert list(running.queues) == ["one", "two"]
    wait_for(lambda: all(job(store, one).status is JobStatus.RUNNING for one in ids))
    assert [job(store, one).attempt for one in ids] == [1, 1]


def test_a_cancellation_right_after_the_claim_is_heard(
    store: Store, running: engine.LocalEngine, tuning: Callable[[Tune], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = device_queue.DeviceQueue._work

    def cancelled_first(self: device_queue.DeviceQueue, record: JobRecord) -> None:
        with store.begin() as session:
            jobs.request_cancel(session, record.id)
        running.cancel(record.id)
        work(self, record)

    monkeypatch.setattr(device_queue.DeviceQueue, "_work", cancelled_first)
    tuning(lambda cancelled, _bench: None if cancelled.is_set() else pytest.fail("it was tuned"))
    job_id = submit(store)
    running.start()
    wait_for(lambda: job(store, job_id).status.final)
    assert job(store, job_id).status is JobStatus.CANCELLED


def test_a_stop_waits_for_the_transaction_of_each_thread(
    running: engine.LocalEngine, tuning: Callable[[Tune], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that outlives the store would leave its connection open; here it holds one for 0.5 s."""
    claim, claiming = claims.claim, threading.Event()

    def slow(*of: Any) -> Any:
        claiming.set()
        time.sleep(0.5)
        return claim(*of)

    monkeypatch.setattr(claims, "claim", slow)
    tuning(lambda *_: pytest.fail("there is no job"))
    running.start()
    assert claiming.wait(10)
    running.stop()
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("device-queue", "leases"))
    ]


@pytest.fixture
def second(store: Store, tmp_path: Any) -> Iterator[engine.LocalEngine]:
    """Another server of the same database and device class."""
    settings = Settings(devices=("host",), cache_dir=tmp_path, compile_processes=1, stop_s=0.2, lease_s=1)
    made = engine.LocalEngine(store, settings)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("asked_to_stop", "status"), [(False, JobStatus.QUEUED), (True, JobStatus.CANCELLED)]
)
def test_a_lost_job_of_a_device_class_without_a_queue_is_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch, asked_to_stop: bool, status: JobStatus
) -> None:
    """As where the service was killed and its device has another power limit since."""
    monkeypatch.setattr(upkeep, "_LOOK_S", 0.1)
    lost, held = (submit(store, seed) for seed in (1, 2))
    with store.begin() as session:
        for lease_s in (0.5, 30.0):
            claims.claim(session, samples.HOST_CLASS, "on another machine", lease_s)
        if asked_to_stop:
            assert jobs.request_cancel(session, lost)
    service = upkeep.Upkeep(store, Settings())
    service.start()
    wait_for(lambda: job(store, lost).status is status)
    service.stop()
    assert job(store, held).status is JobStatus.RUNNING


@pytest.mark.long
def test_a_second_server_steals_nothing(
    store: Store, running: engine.LocalEngine, second: engine.LocalEngine, tuning: Callable[[Tune], None]
) -> None:
    tuning(lambda cancelled, _bench: cancelled.wait(20) and None)
    first = submit(store)
    second.start()
    wait_for(lambda: job(store, first).status is JobStatus.RUNNING)
    running.start()
    other = submit(store, seed=1)
    wait_for(lambda: job(store, other).status is JobStatus.RUNNING)
    time.sleep(2.5)  # longer than the lease of the second server, which it renews
    assert [job(store, one).attempt for one in (first, other)] == [1, 1]


def test_a_cancellation_through_another_server_is_heard(
    store: Store, second: engine.LocalEngine, tuning: Callable[[Tune], None]
) -> None:
    tuning(lambda cancelled, _bench: cancelled.wait(20) and None)
    job_id = submit(store)
    second.start()
    wait_for(lambda: job(store, job_id).status is JobStatus.RUNNING)
    with store.begin() as session:
        jobs.request_cancel(session, job_id)
    wait_for(lambda: job(store, job_id).status is JobStatus.CANCELLED)


def test_a_job_that_was_taken_over_is_let_go(
    store: Store, second: engine.LocalEngine, tuning: Callable[[Tune], None]
) -> None:
    let_go = threading.Event()
    tuning(lambda cancelled, _bench: (cancelled.wait(20) and let_go.set()) or None)
    job_id = submit(store)
    second.start()
    wait_for(lambda: job(store, job_id).status is JobStatus.RUNNING)
    with store.begin() as session:
        taken = {"owner": "another machine", "attempt": 7, "lease_until": ahead(session, 60.0)}
        session.execute(update(JobRow).values(taken))
    wait_for(let_go.is_set)
    assert job(store, job_id).owner == "another machine"
    assert job(store, job_id).status is JobStatus.RUNNING


def note_stale(store: Store, count: int) -> None:
    """Results of so many problems were served although they are stale, the last one most often."""
    with store.begin() as session:
        entities.put_artifact(session, samples.artifact())
        for m in range(1, count + 1):
            winners.put(session, samples.best(samples.problem(m)))
        reports = [misses.Report(samples.problem(m), m, 1.0, measured=True) for m in range(1, count + 1)]
        kept = misses.note(session, samples.HOST_CLASS, reports, count, reason="stale")
        misses.ask(session, samples.HOST_CLASS, kept, staleness.state([FakeBench.driver]))


def live(store: Store) -> list[JobRecord]:
    with store.read() as session:
        return [one for one in jobs.listing(session) if not one.status.final]


def running_now(store: Store) -> JobRecord:
    def running() -> list[JobRecord]:
        return [one for one in live(store) if one.status is JobStatus.RUNNING]

    wait_for(lambda: bool(running()))
    (only,) = running()
    return only


def test_an_idle_device_tunes_stale_results_one_at_a_time_after_what_is_asked_for(
    store: Store, second: engine.LocalEngine, tuning: Callable[[Tune], None]
) -> None:
    go_on = threading.Semaphore(0)
    tuning(lambda _cancelled, _bench: go_on.acquire(timeout=20) and None)
    note_stale(store, 3)
    asked = [submit(store, seed) for seed in range(2)]
    second.start()
    order = []
    for number in range(6):
        current = running_now(store)
        order.append("asked" if current.id in asked else current.request.problem.m)
        assert len([one for one in live(store) if one.id not in asked]) <= 1
        if number == 2:
            asked.append(submit(store, seed=2))
        go_on.release()
        wait_for(lambda ended=current.id: job(store, ended).status.final)
    assert order == ["asked", "asked", 3, "asked", 2, 1]
    time.sleep(0.4)  # longer than an idle queue waits before it looks again
    assert live(store) == [], "each result once"


def test_idle_devices_wait_while_another_tunes_what_is_stale(
    store: Store,
    running: engine.LocalEngine,
    tuning: Callable[[Tune], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()
    tuning(lambda _cancelled, _bench: go_on.wait(20) and None)
    monkeypatch.setattr(device_queue, "_IDLE_LOOK_S", 0.5)
    with store.begin() as session:  # the very job that a retune would be, and older than the note
        jobs.submit(session, TuneRequest(samples.problem(1), max_trials=100), samples.HOST)
    running.start()
    running_now(store)
    note_stale(store, 1)
    looks = []
    look = device_queue.queue_stalest
    monkeypatch.setattr(device_queue, "queue_stalest", lambda *given: looks.append(look(*given)) or looks[-1])
    time.sleep(1.2)
    go_on.set()
    assert 1 <= len(looks) < 6, "each of the two queues looks every half second"
    assert not any(looks)


def test_stale_results_are_left_alone_where_the_settings_say_so(
    store: Store, tmp_path: Path, tuning: Callable[[Tune], None]
) -> None:
    tuning(lambda _cancelled, _bench: pytest.fail("it was tuned"))
    note_stale(store, 1)
    settings = Settings(devices=("host",), cache_dir=tmp_path, compile_processes=1, retune_stale=False)
    made = engine.LocalEngine(store, settings)
    made.start()
    time.sleep(0.4)
    made.stop()
    assert live(store) == []


def test_an_idle_gpu_rehearses_trials_until_its_first_job(
    store: Store, second: engine.LocalEngine, tuning: Callable[[Tune], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed: list[str] = []
    go_on = threading.Event()

    def rehearse(_bench: FakeBench, dtype: DType) -> None:
        rehearsed.append(dtype)
        if len(rehearsed) == 2:
            submit(store)
            raise RuntimeError("no memory is left")

    monkeypatch.setattr(FakeBench, "rehearse", rehearse, raising=False)
    tuning(lambda _cancelled, _bench: go_on.wait(20) and None)
    second.start()
    (queue,) = second.queues.values()
    assert queue._rehearsals == [], "a host needs none"
    queue._rehearsals = list(device_queue.REHEARSED)
    running_now(store)
    go_on.set()
    assert rehearsed == list(device_queue.REHEARSED[:2])
    assert queue._rehearsals == []
