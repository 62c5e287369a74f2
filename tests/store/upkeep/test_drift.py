"""A canary measures winners again on an idle device; it tells drift from another clock or power limit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from engine_lab import FakeBench, job, submit, wait_for
from sqlalchemy import update

from service.engine import canary, device_queue, engine
from service.metrics import Metrics
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Timing, TrialResult
from tuner.devices.base import Conditions
from tuner.store import best as winners
from tuner.store import entities, imports, jobs
from tuner.store.access import audit
from tuner.store.database import Store
from tuner.store.faults import drift, quarantine
from tuner.store.faults.drift import Cause, Reading
from tuner.store.models import ArtifactRow, CanaryRow
from tuner.store.queue import claims
from tuner.store.records import utc_now
from tuner.store.trials import JobRecorder

BEFORE = Reading(
    median_us=100.0,
    low_us=98.0,
    high_us=102.0,
    mhz=1900.0,
    watts=300.0,
    most_mhz=1980.0,
    power_limit_watts=700.0,
    celsius=40.0,
    driver="linux 6",
)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, None),
        ({"low_us": 101.9, "high_us": 106.0}, None),
        ({"low_us": 95.0, "high_us": 98.1}, None),
        ({"low_us": 103.0, "high_us": 106.0}, Cause.DRIFT),
        ({"low_us": 90.0, "high_us": 97.0}, Cause.DRIFT),
        ({"low_us": 103.0, "high_us": 106.0, "celsius": 80.0}, Cause.DRIFT),
        ({"low_us": 103.0, "high_us": 106.0, "driver": "linux 7"}, Cause.DRIVER),
        ({"low_us": 103.0, "high_us": 106.0, "power_limit_watts": 500.0}, Cause.POWER_LIMIT),
        ({"low_us": 103.0, "high_us": 106.0, "most_mhz": 1500.0}, Cause.CLOCK),
        # As many cycles as before at a lower clock: 1900 / 1710 = 1.11.
        ({"low_us": 109.0, "high_us": 113.0, "mhz": 1710.0}, Cause.CLOCK),
        # More cycles at a lower clock.
        ({"low_us": 139.0, "high_us": 143.0, "mhz": 1710.0}, Cause.DRIFT),
        ({"low_us": 103.0, "high_us": 106.0, "mhz": None, "power_limit_watts": None}, Cause.DRIFT),
        ({"mhz": 1000.0, "driver": "linux 7"}, None),
        ({"power_limit_watts": 500.0}, Cause.POWER_LIMIT),
    ],
)
def test_what_a_shift_comes_of(changes: dict[str, Any], cause: Cause | None) -> None:
    assert drift.cause_of(BEFORE, dataclasses.replace(BEFORE, **changes)) is cause


class IdleBench(FakeBench):
    """A device whose winners take what a test says."""

    def __init__(self, name: str = "one") -> None:
        super().__init__(name)
        self.us, self.outcome, self.under = 2.0, Outcome.OK, Conditions(1980.0, 700.0, 40.0)
        self.method = "lab"
        self.own_fault = True
        self.tried: list[float] = []
        self.takes_s = 0.0

    def trial(self, artifact: Artifact, problem: GemmProblem, *_: object) -> TrialResult:
        assert artifact.digest == samples.artifact().digest
        assert problem.m in (64, 65)
        self.tried.append(time.monotonic())
        time.sleep(self.takes_s)
        if self.outcome is not Outcome.OK:
            return TrialResult(outcome=self.outcome, message="on purpose", own_fault=self.own_fault)
        timing = Timing((self.us,), self.us, 0.99 * self.us, 1.01 * self.us, self.method, mhz=1900.0)
        return TrialResult(outcome=Outcome.OK, timing=timing)

    def conditions(self) -> Conditions:
        return self.under


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "IDLE_S", 0.0)
    monkeypatch.setattr(canary, "SECOND_LOOK_S", 0.0)


@pytest.fixture
def won(store: Store) -> str:
    """A winner whose trial was short, and the job that found it."""
    return with_winner(store)


def with_winner(store: Store) -> str:
    with store.begin() as session:
        found, _ = jobs.submit(session, samples.request(), samples.HOST)
        claims.claim(session, samples.HOST_CLASS, "me")
    recorder = JobRecorder(store, found.id)
    recorder.add_trial(dataclasses.replace(samples.trial(0), config=samples.config(16)), samples.artifact())
    raced = recorder.stored_best(samples.problem())
    assert recorder.set_best(samples.best(samples.problem()), samples.artifact(), raced)
    with store.begin() as session:
        jobs.finish(session, found.id, JobStatus.SUCCEEDED)
    return found.id


def look(store: Store, bench: IdleBench, **settings: Any) -> int:
    """How many trials one look takes."""
    before = len(bench.tried)
    made = canary.Canary(store, bench, Metrics(), Settings(**settings))  # type: ignore[arg-type]
    for _ in range(50):
        made.step()
    return len(bench.tried) - before


def age(store: Store) -> None:
    """Let the last look be two days ago."""
    with store.begin() as session:
        session.execute(update(CanaryRow).values(checked=utc_now() - timedelta(days=2)))


def is_marked(store: Store) -> bool:
    with store.read() as session:
        [stored] = winners.exact(session, samples.HOST_CLASS, samples.problem())
    return stored.drifted


def events(store: Store) -> list[dict[str, Any]]:
    with store.read() as session:
        return [one.data for one in audit.listing(session) if one.action == audit.Action.DRIFT]


def test_a_winner_is_read_once_a_day(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    assert look(store, bench, canary_hours=0) == 0
    assert look(store, bench) == canary.TRIALS
    assert look(store, bench) == 0
    age(store)
    assert look(store, bench) == canary.TRIALS
    bench.driver = "another driver"
    assert look(store, bench) == canary.TRIALS
    assert look(store, bench) == 0
    assert events(store) == []
    assert not is_marked(store)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.TIMEOUT])
def test_what_is_found_waits_for_imports(store: Store, won: str, outcome: Outcome) -> None:
    """Both choose which winners are served; PostgreSQL would end one of two that wait for each other."""
    assert won
    bench = IdleBench()
    bench.outcome = outcome
    samples.assert_waits_for_imports(store, lambda: look(store, bench))
    assert served(store) == (outcome is Outcome.OK)


def served(store: Store) -> bool:
    with store.read() as session:
        return bool(winners.exact(session, samples.HOST_CLASS, samples.problem()))


def test_what_others_slow_down_is_read_once_they_are_gone(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    bench.interfering = ("another process",)
    assert look(store, bench) == 0
    bench.interfering = ()
    assert look(store, bench) == canary.TRIALS


def test_a_winner_that_fails_is_not_tried_again_and_again(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    bench.outcome, bench.own_fault = Outcome.TIMEOUT, False
    assert look(store, bench) == 1


def test_a_winner_whose_kernel_is_damaged_keeps_no_device_down(store: Store, won: str) -> None:
    assert won
    with store.begin() as session:
        session.execute(update(ArtifactRow).values(data=b"no kernel"))
    assert look(store, IdleBench()) == 0


def test_a_pass_that_a_job_broke_off_is_done_again(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    made = canary.Canary(store, bench, Metrics(), Settings())  # type: ignore[arg-type]
    for _ in range(canary.TRIALS - 1):
        made.step()
    made.disturb()
    for _ in range(50):
        made.step()
    assert len(bench.tried) == 2 * canary.TRIALS - 1


def test_a_winner_is_marked_as_long_as_it_drifts_on_any_device(store: Store, won: str) -> None:
    assert won
    benches = IdleBench("one"), IdleBench("two")
    for us, marked in (((2.0, 2.0), False), ((2.2, 2.2), True), ((2.0, 2.2), True), ((2.0, 2.0), False)):
        age(store)
        for bench, median_us in zip(benches, us, strict=True):
            bench.us = median_us
            look(store, bench)
        assert is_marked(store) is marked


def test_a_drift_from_before_its_race_marks_no_winner(store: Store, won: str) -> None:
    """As that of a device which left since."""
    assert won
    gone, here = IdleBench("one"), IdleBench("two")
    for us in (2.0, 2.2):
        age(store)
        gone.us = us
        look(store, gone)
    assert is_marked(store)
    with_winner(store)  # the same kernel wins again
    for us, marked in ((2.0, False), (2.2, True), (2.0, False)):
        age(store)
        here.us = us
        look(store, here)
        assert is_marked(store) is marked


def test_a_shift_that_stays_is_told_and_marked_until_it_is_gone(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    look(store, bench)
    age(store)
    bench.us, bench.under = 2.2, Conditions(1980.0, 700.0, 80.0)
    assert look(store, bench) == 2 * canary.TRIALS
    assert is_marked(store)
    [event] = events(store)
    assert (event["cause"], event["ratio"]) == ("drift", pytest.approx(1.1))
    assert (event["before"]["celsius"], event["now"]["celsius"]) == (40.0, 80.0)
    assert event["now"]["power_limit_watts"] == 700.0
    with store.read() as session:
        assert drift.counts(session) == {"drift": 1}
        assert [one[2] for one in winners.origins(session, samples.HOST_CLASS)] == [True]
    age(store)
    assert look(store, bench) == canary.TRIALS  # told once
    assert len(events(store)) == 1
    age(store)
    bench.us = 2.0
    look(store, bench)
    assert not is_marked(store)
    assert [one["cause"] for one in events(store)] == [None, "drift"]
    with store.read() as session:
        assert drift.counts(session) == {}


def test_shifts_of_winners_that_are_gone_are_not_counted(store: Store, won: str) -> None:
    assert won
    benches = IdleBench("one"), IdleBench("two")
    for us in (2.0, 2.2):
        age(store)
        for bench in benches:
            bench.us = us
            look(store, bench)
    with store.read() as session:
        assert drift.counts(session) == {"drift": 1}, "one winner, on two devices"
    with store.begin() as session:
        imports.remove_best(session, samples.HOST_CLASS, samples.problem())
    with store.read() as session:
        assert drift.counts(session) == {}
    with_winner(store)  # the same kernel wins again
    with store.read() as session:
        assert drift.counts(session) == {}


def test_a_shift_of_a_moment_is_not_told(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    look(store, bench)
    age(store)
    bench.us = 3.0
    made = canary.Canary(store, bench, Metrics(), Settings())  # type: ignore[arg-type]
    for _ in range(canary.TRIALS):
        made.step()
    bench.us = 2.0
    for _ in range(20):
        made.step()
    assert events(store) == []
    assert not is_marked(store)


def test_a_change_of_the_power_limit_is_told_and_marks_nothing(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    look(store, bench)
    age(store)
    bench.us, bench.under = 2.2, Conditions(1980.0, 500.0, 40.0)
    look(store, bench)
    assert [one["cause"] for one in events(store)] == ["power-limit"]
    assert not is_marked(store)


def test_a_release_that_measures_in_another_way_starts_anew(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    look(store, bench)
    for us, method, marked in ((1.7, "lab-v2", False), (1.9, "lab-v2", True)):
        age(store)
        bench.us, bench.method = us, method
        look(store, bench)
        assert is_marked(store) is marked
    age(store)
    bench.method = "lab-v3"
    look(store, bench)
    assert is_marked(store), "a reading of another method cannot tell that the shift is gone"
    assert len(events(store)) == 1


def test_a_winner_that_was_raced_again_starts_anew(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    look(store, bench)
    with_winner(store)
    age(store)
    bench.us = 2.2
    assert look(store, bench) == canary.TRIALS
    assert events(store) == []


def test_long_trials_and_quarantined_winners_are_left_alone(store: Store, won: str) -> None:
    assert won
    with store.read() as session:
        given = (session, "one", samples.HOST_CLASS)
        assert [one.config for one in drift.to_watch(*given, 0.375, 3)] == [samples.config(16)]
        assert drift.to_watch(*given, 0.37, 3) == []
        assert drift.to_watch(*given, 0.375, 0) == []
    bench = IdleBench()
    bench.outcome = Outcome.WRONG_RESULT
    look(store, bench)
    with store.read() as session:
        [entry] = quarantine.listing(session)
        assert drift.to_watch(session, "one", samples.HOST_CLASS, 0.375, 3) == []
    assert (entry.config, entry.job_id, entry.trial) == (samples.config(16), None, None)
    assert (entry.message, entry.device, entry.winners) == ("on purpose", "one", 1)


def test_a_job_that_came_is_not_kept_waiting(store: Store, won: str) -> None:
    assert won
    bench = IdleBench()
    made = canary.Canary(store, bench, Metrics(), Settings())  # type: ignore[arg-type]
    assert made.step()
    made.disturb()  # what was read before a job does not count after it
    look_again = 0
    while made.step():
        look_again += 1
    assert look_again == canary.TRIALS - 1
    bench.used = time.monotonic()
    canary.IDLE_S = 600.0
    assert not made.step()


@pytest.fixture
def running(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[engine.LocalEngine]:
    monkeypatch.setattr(device_queue, "Bench", IdleBench)
    monkeypatch.setattr(engine, "list_devices", lambda: ["one", "host"])
    monkeypatch.setattr(canary, "TRIALS", 10_000)
    settings = Settings(devices=("one",), cache_dir=tmp_path, lock_dir=tmp_path, compile_processes=1)
    made = engine.LocalEngine(store, settings)
    yield made
    made.stop()


def test_a_queue_takes_a_job_between_two_trials_of_its_canary(
    store: Store, won: str, running: engine.LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert won
    began: list[float] = []

    def run_job(*_: object) -> None:
        began.append(time.monotonic())

    monkeypatch.setattr(device_queue, "run_job", run_job)
    running.start()
    bench: Any = running.queues["one"].bench
    bench.takes_s = 0.3
    wait_for(lambda: len(bench.tried) >= 3)
    job_id = submit(store, seed=9)
    running.wake()
    count = len(bench.tried)
    wait_for(lambda: bool(began))
    assert sum(at < began[0] for at in bench.tried[count:]) <= 1
    wait_for(lambda: job(store, job_id).status.final)
    with store.read() as session:
        assert entities.has_artifact(session, samples.artifact().digest)
