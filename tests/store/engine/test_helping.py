"""Idle devices that run trials of another device's job: what they take, and what is left where they fail."""

from __future__ import annotations

import dataclasses
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from engine_lab import wait_for
from helping_lab import TOY_COST, TimedBench, TwoDevices
from sqlalchemy import func, select
from toy_family import CUDA_DEVICE, TOY

from service.engine.helper import Helper
from tilewright import __version__
from tilewright.schema.job import JobProgress, JobStatus
from tilewright.schema.trial import Anchor, Outcome, Trial
from tuner.job import slots
from tuner.job.context import JobContext
from tuner.job.helpers import adopt
from tuner.job.slots import Slot, SlotBoard, SlotState, TrialTask
from tuner.store import entities, jobs
from tuner.store.database import Store
from tuner.store.models import TrialSlotRow
from tuner.store.queue import claims, owners
from tuner.store.trials import JobRecorder

CLASS = CUDA_DEVICE.device_class.id
ANCHOR = Anchor("two", "a" * 64, 2.0, 1.0)
Make = Callable[..., TwoDevices]


@pytest.fixture
def make(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[TwoDevices] = []

    def two_devices(**settings: Any) -> TwoDevices:
        made.append(TwoDevices(store, tmp_path, monkeypatch, **settings))
        return made[-1]

    yield two_devices
    for one in made:
        one.engine.stop()


def ended(lab: TwoDevices, job_id: str) -> list[Trial]:
    """The trials of a job that succeeded, each number of them once."""
    wait_for(lambda: lab.job(job_id).status.final, 30.0)
    assert lab.job(job_id).status is JobStatus.SUCCEEDED, lab.job(job_id).error
    trials = lab.trials(job_id)
    assert sorted(one.number for one in trials) == list(range(len(trials)))
    assert len({one.config for one in trials}) == len(trials)
    assert slots_of(lab.store) == 0
    return trials


def slots_of(store: Store) -> int:
    with store.read() as session:
        return session.scalars(select(func.count()).select_from(TrialSlotRow)).one()


def of_helpers(trials: list[Trial]) -> list[Trial]:
    return [one for one in trials if one.anchor is not None]


def test_an_idle_device_takes_trials_and_its_times_count_as_those_of_the_jobs_device(make: Make) -> None:
    lab = make()
    lab.benches["two"].slower = 1.04
    for bench in lab.benches.values():
        bench.seconds = lambda: 0.03
    lab.engine.start()
    trials = ended(lab, lab.submit(40))
    helped = of_helpers(trials)
    assert 10 <= len(helped) <= 30
    (owner,) = {name for name, bench in lab.benches.items() if bench.races}
    factor = 1.04 if owner == "one" else 1 / 1.04
    for trial in trials:
        assert trial.timing is not None
        expected = TOY_COST(str(trial.config)) * lab.benches[owner].slower
        assert trial.timing.median_us == pytest.approx(expected)
        if trial.anchor:
            assert trial.anchor.there_us / trial.anchor.here_us == pytest.approx(factor)
            assert trial.anchor.device != owner
    helper = "two" if owner == "one" else "one"
    assert len(lab.benches[owner].tried) == 40 - len(helped)
    assert len(lab.benches[helper].tried) > len(helped), "the kernel that relates the two as well"


@pytest.mark.long
def test_a_pruned_trial_is_pruned_by_the_times_of_its_own_device(make: Make) -> None:
    lab = make()
    lab.benches["two"].slower = 3.0
    lab.engine.start()
    trials = ended(lab, lab.submit(40))
    best = min(one.timing.median_us for one in trials if one.timing)
    assert of_helpers(trials)
    for trial in trials:
        assert trial.timing is not None
        assert trial.outcome is Outcome.OK or trial.timing.median_us > best


@pytest.mark.long
def test_it_can_be_turned_off(make: Make) -> None:
    lab = make(help_jobs=False)
    lab.engine.start()
    assert of_helpers(ended(lab, lab.submit())) == []
    assert sorted(len(bench.tried) for bench in lab.benches.values()) == [0, 24]


@pytest.mark.long
def test_a_device_that_others_use_does_not_help(make: Make) -> None:
    lab = make()
    for bench in lab.benches.values():
        bench.interfering = ("other processes used 40% of the GPU",)
    lab.engine.start()
    assert of_helpers(ended(lab, lab.submit(20))) == []


@pytest.mark.long
def test_a_damaged_anchor_is_no_trouble_of_the_device_that_would_help(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def damaged(_session: Any, digest: str) -> bytes:
        read.append(digest)
        return b"damaged"

    monkeypatch.setattr("service.engine.helper.entities", types.SimpleNamespace(get_artifact=damaged))
    lab = make()
    for bench in lab.benches.values():
        bench.seconds = lambda: 0.0 if read else 0.06
    lab.engine.start()
    job_id, troubles = lab.submit(40), set()
    while not lab.job(job_id).status.final:
        troubles |= {queue.health().trouble for queue in lab.engine.queues.values()}
        time.sleep(0.05)
    assert read, "it helped"
    assert troubles == {None}
    assert of_helpers(ended(lab, job_id)) == []


@pytest.mark.long
def test_a_job_of_its_own_comes_first(make: Make) -> None:
    lab = make()
    for bench in lab.benches.values():
        bench.seconds = lambda: 0.1
    lab.engine.start()
    first = lab.submit(60)
    wait_for(lambda: bool(of_helpers(lab.trials(first))))
    second = lab.submit(10, seed=1)
    wait_for(lambda: lab.job(second).status is JobStatus.RUNNING, 2.0)
    ended_first = lab.job(first).status.final
    assert not ended_first
    busy = {queue.bench.name for queue in lab.engine.queues.values() if queue.health().job_id == second}
    for name in busy:
        lab.benches[name].seconds = lambda: 0.0
    wait_for(lambda: lab.job(second).status.final, 20.0)
    assert of_helpers(lab.trials(second)) == []
    for bench in lab.benches.values():
        bench.seconds = lambda: 0.0
    wait_for(lambda: lab.job(first).status.final, 20.0)
    ended(lab, first)


@pytest.mark.long
def test_a_helper_that_keeps_a_job_waiting_at_its_end_is_not_waited_for(make: Make) -> None:
    lab = make()
    lab.engine.start()
    job_id = lab.submit(40)
    wait_for(lambda: bool(of_helpers(lab.trials(job_id))))
    helper = next(one.anchor.device for one in of_helpers(lab.trials(job_id)) if one.anchor)
    bench, released = lab.benches[helper], threading.Event()
    bench.seconds = lambda: 0.0 * released.wait(60.0)
    started, tried = time.monotonic(), len(bench.tried)
    trials = ended(lab, job_id)
    assert time.monotonic() - started < 8.0
    released.set()
    wait_for(lambda: len(bench.tried) > tried, 20.0)
    assert lab.trials(job_id) == trials, "what it says later counts for nothing"


@pytest.mark.long
@pytest.mark.parametrize("began", [False, True])
def test_the_trials_of_a_helper_that_is_gone_are_run_by_another(make: Make, began: bool) -> None:
    """It is silent for longer than its lease, in the midst of a job."""
    lab = make(devices=("one",), lease_s=1.0)
    lab.benches["one"].seconds = lambda: 0.08
    lab.engine.start()
    job_id = lab.submit(40)
    wait_for(lambda: bool(lab.trials(job_id)))
    silent = f"silent@{__version__}"
    with lab.store.begin() as session:
        assert slots.join(session, CLASS, silent, 2, lease_s=1.0)
    given = taken(lab.store, silent, began)
    wait_for(lambda: slots_of(lab.store) == 0)
    lab.benches["one"].seconds = lambda: 0.0
    trials = ended(lab, job_id)
    assert of_helpers(trials) == []
    assert given.task is not None
    assert [one.config for one in trials if one.number == given.task.number] == [given.task.config]
    with lab.store.begin() as session:
        assert not slots.start(session, given)
        assert not slots.answer(session, given, answered(given), None)


def taken(store: Store, helper: str, began: bool) -> Slot:
    """A slot of a helper that has a trial."""
    found: list[Slot] = []

    def offered() -> bool:
        with store.read() as session:
            found[:] = [one for one in slots.held(session, helper) if one.state is SlotState.OFFERED]
        return bool(found)

    wait_for(offered)
    if began:
        with store.begin() as session:
            assert slots.start(session, found[0])
    return found[0]


def answered(slot: Slot) -> Trial:
    assert slot.task is not None
    task = slot.task
    return dataclasses.replace(samples.trial(task.number, 3.0), config=task.config, anchor=ANCHOR)


def running(store: Store) -> tuple[str, SlotBoard]:
    """A running job that searches, and its slots."""
    with store.begin() as session:
        job, _ = jobs.submit(session, samples.request(), samples.HOST)
        claimed = claims.claim(session, samples.HOST_CLASS, "me")
        assert claimed is not None
        jobs.set_progress(session, job.id, JobProgress("search", 0, 10))
    return job.id, SlotBoard(store, claimed)


def task(number: int) -> TrialTask:
    config = TOY.make(16 * (number + 1), 1)
    return TrialTask(number, config, "search", samples.problem(64), None, ANCHOR.artifact, 1.0)


def test_a_late_answer_finds_no_slot(store: Store) -> None:
    job_id, board = running(store)
    with store.begin() as session:
        assert slots.join(session, samples.HOST_CLASS, "helper", 1, 30.0)
    (slot,) = board.look()
    first = board.offer(slot, task(0))
    assert first is not None
    with store.begin() as session:
        assert slots.start(session, first)
    begun = dataclasses.replace(first, state=SlotState.RUNNING)
    assert board.withdraw([first]) == [], "it has begun since it was looked at"
    assert board.withdraw([begun]) == [begun]
    with store.begin() as session:
        assert not slots.answer(session, first, answered(first), samples.artifact())
        assert not entities.has_artifact(session, samples.artifact().digest)
        assert slots.held(session, "helper") == []
    assert JobRecorder(store, job_id).trials() == []


def test_a_slot_is_filled_again_and_an_answer_to_the_trial_before_is_refused(store: Store) -> None:
    _, board = running(store)
    with store.begin() as session:
        assert slots.join(session, samples.HOST_CLASS, "helper", 1, 30.0)
    first = board.offer(board.look()[0], task(0))
    assert first is not None
    with store.begin() as session:
        assert slots.start(session, first)
        assert slots.answer(session, first, answered(first), samples.artifact())
        assert not slots.answer(session, first, answered(first), samples.artifact()), "twice"
    (done,) = board.look()
    assert (done.state, done.trial) == (SlotState.DONE, answered(first))
    assert board.kernel(samples.artifact().digest) == samples.artifact()
    second = board.offer(done, task(1))
    assert second is not None
    with store.begin() as session:
        assert not slots.start(session, first)
        assert slots.start(session, second)
        assert not slots.answer(session, first, answered(first), None)
        assert slots.answer(session, second, answered(second), None)


def test_only_a_job_that_searches_is_helped_and_the_one_with_the_fewest_helpers(store: Store) -> None:
    first, _ = running(store)
    with store.begin() as session:
        assert slots.join(session, "another class", "helper", 1, 30.0) is None
        jobs.set_progress(session, first, JobProgress("race", 0, 10))
        assert slots.join(session, samples.HOST_CLASS, "helper", 1, 30.0) is None
        jobs.set_progress(session, first, JobProgress("search", 0, 10))
        second, _ = jobs.submit(session, samples.request(seed=1), samples.HOST)
        assert claims.claim(session, samples.HOST_CLASS, "me")
        jobs.set_progress(session, second.id, JobProgress("search", 0, 10))
        joined = [slots.join(session, samples.HOST_CLASS, str(number), 4, 30.0) for number in range(4)]
        found = [one.id for one in joined if one]
        assert sorted(found) == sorted([first, second.id] * 2)
        assert found[0] != found[1]
        jobs.finish(session, first, JobStatus.FAILED, "no matter")
        assert slots.held(session, "0") + slots.held(session, "1") != []
    assert slots_of(store) == 8


@pytest.mark.long
def test_a_device_of_another_release_does_not_help(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = make(devices=("one",))
    lab.benches["one"].seconds = lambda: 0.05
    lab.engine.start()
    job_id = lab.submit(40)
    wait_for(lambda: bool(lab.trials(job_id)))
    monkeypatch.setattr(owners, "__version__", "0.0.1")
    bench: Any = TimedBench("two")
    nothing: Any = None
    helper = Helper(lab.store, bench, nothing, nothing, 1.0, threading.Event())
    assert not helper.help()
    assert not helper.help(), "asks again later"
    lab.benches["one"].seconds = lambda: 0.0
    ended(lab, job_id)
    (told,) = [one.getMessage() for one in caplog.records if "helps nobody" in one.getMessage()]
    assert told == (
        f"device two helps nobody: job {job_id} is tuned by {__version__} and this is 0.0.1: use one release "
        "on all devices, so that they help each other"
    )


def test_an_idle_device_only_reads(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = make(devices=("one",))
    bench: Any = TimedBench("two")
    nothing: Any = None
    helper = Helper(lab.store, bench, nothing, nothing, 1.0, threading.Event())
    monkeypatch.setattr(Store, "begin", None)
    assert not helper.help()
    monkeypatch.undo()


@pytest.mark.parametrize("taken", [False, True], ids=["", "its number is taken"])
def test_what_was_answered_outlives_the_claim_and_what_was_not_is_given_back(
    store: Store, taken: bool
) -> None:
    job_id, board = running(store)
    with store.begin() as session:
        assert slots.join(session, samples.HOST_CLASS, "helper", 3, 30.0)
    given = [board.offer(slot, task(number)) for number, slot in enumerate(board.look())]
    first, second, third = (one for one in given if one)
    with store.begin() as session:
        for one in (first, second):
            assert slots.start(session, one)
        assert slots.answer(session, first, answered(first), samples.artifact())
        slots.leave(session, "helper")
    assert [one.state for one in board.look()] == [SlotState.DONE, SlotState.RETURNED, SlotState.RETURNED]
    with store.begin() as session:
        assert not slots.answer(session, second, answered(second), None)
        assert not slots.start(session, third)
        claims.requeue_interrupted(session, samples.HOST_CLASS, "me")
        claimed = claims.claim(session, samples.HOST_CLASS, "another")
    assert claimed is not None
    assert board.look(), "until the next claim takes over"
    recorder = JobRecorder(store, job_id)
    later: Any = SlotBoard(store, claimed)
    nothing: Any = None
    context = JobContext(claimed.request, job_id, nothing, nothing, recorder, nothing, 0.0, later)
    if taken:  # by a claim that had no helpers and ended since
        recorder.add_trial(samples.trial(0), samples.artifact())
    expected = [samples.trial(0)] * taken + [dataclasses.replace(answered(first), number=int(taken))]
    for _ in range(2):
        adopt(context)
        assert recorder.trials() == expected
    assert (board.look(), later.look()) == ([], [])
