"""Stale results to be tuned again: once for each state of services, never while a job is at the problem."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from store_samples import HOST, HOST_CLASS, artifact, best, problem, request

from service import freshness, retune
from service.settings import Settings
from tuner.job import TuneRequest
from tuner.store import artifacts, jobs, misses, retunes
from tuner.store import best as winners
from tuner.store.database import Store
from tuner.store.misses import Report
from tuner.store.records import JobStatus, StoredBest

LANE: Any = SimpleNamespace(name="host", bench=SimpleNamespace(spec=HOST, driver="driver 1"))
MINE = freshness.state(["driver 1"])
OTHERS = freshness.state(["driver 2"])


def tune(store: Store, m: int) -> None:
    with store.begin() as session:
        artifacts.put(session, artifact())
        winners.put(session, best(problem(m)))


def note(store: Store, *stakes: tuple[int, float], wanted: str = MINE) -> None:
    reports = [Report(problem(m), 1, stake, True) for m, stake in stakes]
    with store.begin() as session:
        kept = misses.note(session, HOST_CLASS, reports, 100, "stale")
        retunes.ask(session, HOST_CLASS, kept, wanted)


def stalest(store: Store, wanted: str = MINE) -> int | None:
    with store.read() as session:
        found = retunes.top(session, HOST_CLASS, wanted)
    return found.m if found else None


def take(store: Store, m: int, wanted: str = MINE) -> bool:
    with store.begin() as session:
        return retunes.take(session, HOST_CLASS, problem(m), wanted)


def queued(store: Store) -> list[int]:
    with store.read() as session:
        return [job.request.problem.m for job in jobs.listing(session)]


def end_all(store: Store, status: JobStatus = JobStatus.FAILED) -> None:
    with store.begin() as session:
        for job in jobs.listing(session):
            jobs.finish(session, job.id, status, "no kernel")


def queue_stalest(store: Store, **settings: Any) -> bool:
    return retune.queue_stalest(store, LANE, Settings(**settings))


def test_each_is_taken_up_once_the_largest_stake_first(store: Store) -> None:
    for m in (64, 65):
        tune(store, m)
    assert stalest(store) is None
    note(store, (64, 5.0), (65, 9.0))
    with store.begin() as session:
        misses.note(session, HOST_CLASS, [Report(problem(66), 1, 99.0, True)], 100)
    assert stalest(store) == 65
    assert take(store, 65)
    assert not take(store, 65), "another device was faster"
    assert stalest(store) == 64
    tune(store, 64)
    assert stalest(store) is None, "replaced"


def test_services_of_two_states_do_not_take_turns_for_ever(store: Store) -> None:
    tune(store, 64)
    order = []
    for _ in range(3):
        for wanted in (MINE, OTHERS):
            note(store, (64, 5.0), wanted=wanted)  # each service starts anew and serves what it finds stale
            assert stalest(store, OTHERS if wanted is MINE else MINE) is None, "that is not for this one"
            if stalest(store, wanted):
                assert take(store, 64, wanted)
                tune(store, 64)
                order.append(wanted)
    assert order == [MINE, OTHERS]


def test_a_result_that_was_replaced_by_another_state_waits_to_be_served_again(store: Store) -> None:
    tune(store, 64)
    note(store, (64, 5.0))
    tune(store, 64)
    assert stalest(store) is None
    note(store, (64, 5.0))
    assert stalest(store) == 64


def test_a_job_is_queued_once_and_joined_jobs_are_waited_for(store: Store) -> None:
    tune(store, 64)
    note(store, (64, 5.0))
    assert queue_stalest(store)
    for _ in range(3):
        assert not queue_stalest(store), "nothing new: the lane has to wait"
    end_all(store)
    assert not queue_stalest(store), "a job that failed is not repeated"
    assert queued(store) == [64]


def test_a_job_that_came_in_between_is_joined_and_no_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(store, 64)
    note(store, (64, 5.0))
    with store.begin() as session:
        jobs.submit(session, TuneRequest(problem(64), max_trials=100), HOST)
    monkeypatch.setattr(retunes, "top", lambda *_args: problem(64))  # looked before that
    assert not queue_stalest(store)
    assert queued(store) == [64]


def test_a_problem_that_any_job_is_at_is_left_alone(store: Store) -> None:
    tune(store, 64)
    with store.begin() as session:
        jobs.submit(session, request(64), HOST)
    note(store, (64, 5.0))  # served, stale, after that job was queued
    assert not queue_stalest(store)
    assert queued(store) == [64], "not tuned twice at once with other options"
    end_all(store)
    assert queue_stalest(store)


def test_a_full_queue_holds_retunes_back(store: Store) -> None:
    tune(store, 64)
    note(store, (64, 5.0))
    assert not queue_stalest(store, max_queue=0)
    with store.begin() as session:
        jobs.submit(session, request(99), HOST)
    assert not queue_stalest(store, max_queue=1)
    assert queue_stalest(store, max_queue=2)


@pytest.mark.parametrize("limits", [{"max_extent": 63}, {"max_gemm_bytes": 1000}])
def test_what_is_over_a_limit_is_not_tuned_until_it_is_asked_for_within(
    store: Store, limits: dict[str, int]
) -> None:
    for m in (64, 8):
        tune(store, m)
    note(store, (64, 9.0))
    assert not queue_stalest(store, **limits)
    assert stalest(store) is None, "it does not stand in the way of others"
    assert queued(store) == []
    note(store, (64, 9.0))
    assert queue_stalest(store)


def results(store: Store, *ms: int) -> list[StoredBest]:
    with store.read() as session:
        return [winners.exact(session, HOST_CLASS, problem(m))[0] for m in ms]


def noted(store: Store) -> dict[int, int]:
    with store.read() as session:
        return {miss.problem.m: miss.count for miss in misses.ranked(session, HOST_CLASS, 100)}


def watching(store: Store, most: int) -> retune.StaleResults:
    trust: Any = SimpleNamespace(state=lambda _class: MINE)
    return retune.StaleResults(store, Settings(max_misses=most), trust)


def test_a_served_result_is_noted_once(store: Store) -> None:
    tune(store, 64)
    stale = watching(store, 10)
    for _ in range(2):
        stale.served(results(store, 64))
    assert noted(store) == {64: 1}
    assert stalest(store) == 64


def test_what_a_full_list_dropped_is_noted_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for m in (64, 65):
        tune(store, m)
    stale = watching(store, 1)
    stale.served(results(store, 64, 65))
    assert noted(store) == {64: 1}
    tune(store, 64)
    stale.served(results(store, 65))
    assert noted(store) == {}, "not at once: a full list costs no transaction for every answer"
    now = retune.time.monotonic() + retune._AGAIN_S
    monkeypatch.setattr(retune.time, "monotonic", lambda: now)
    stale.served(results(store, 65))
    assert noted(store) == {65: 1}


def test_what_the_database_refused_is_noted_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(store, 64)
    stale, served = watching(store, 10), results(store, 64)
    with monkeypatch.context() as patch:
        patch.setattr(retune.misses, "note", lambda *_args, **_options: failing())
        with pytest.raises(OperationalError):
            stale.served(served)
    monkeypatch.setattr(retune, "_AGAIN_S", 0.0)
    now = retune.time.monotonic() + 60.0
    monkeypatch.setattr(retune.time, "monotonic", lambda: now)
    stale.served(served)
    assert noted(store) == {64: 1}


def failing() -> None:
    raise OperationalError("INSERT", {}, Exception("disk full"))
