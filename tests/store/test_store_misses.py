"""Misses: added up, ranked by the time at stake, closed by results, bounded.

Stale results among them: tuned again once for each state of services, never while a job is at the problem.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from databases import Databases, migrate, opened
from fastapi.testclient import TestClient
from sqlalchemy import delete, event, insert, select, text, update
from sqlalchemy.exc import OperationalError
from store_samples import (
    HOST,
    HOST_CLASS,
    OTHER_CLASS,
    PROVENANCE,
    artifact,
    best,
    config,
    problem,
    remove_problem,
    request,
)

from service.engine import retune, staleness
from service.http.routes import best as best_routes
from service.http.routes.misses import _cursor
from service.http.views import cursor, miss_place
from service.metrics import Metrics
from service.results.answer_cache import Answer
from service.server.app import create_app
from service.settings import Settings
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import QUICK_METHOD, LadderKernel, Outcome, Trial
from tuner.store import best as winners
from tuner.store import entities, imports, jobs, misses
from tuner.store.database import Store
from tuner.store.faults import quarantine
from tuner.store.misses import OpenMiss, Report
from tuner.store.models import BestConfigRow, MissRow, ProblemRow
from tuner.store.queue import claims
from tuner.store.records import canonical, utc_now
from tuner.store.trials import JobRecorder


def report(m: int, count: int = 1, time_us: float = 10.0, measured: bool = False) -> Report:
    return Report(problem(m), count, time_us, measured)


def note(
    store: Store,
    *reports: Report,
    most: int = 100,
    reason="missing",
    of: str = HOST_CLASS,
    caller: str | None = None,
) -> int:
    with store.begin() as session:
        return len(misses.note(session, of, reports, most, reason, caller))


def ranked(store: Store, device_class: str | None = HOST_CLASS, limit: int = 100) -> list[OpenMiss]:
    with store.read() as session:
        return misses.ranked(session, device_class, limit)


def tune(store: Store, m: int) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, best(problem(m)))


def test_counts_add_up_and_rank_by_the_time_at_stake(store: Store) -> None:
    # Stakes in us: 64 -> 5 x 10, 65 -> 1 x 100, 66 -> (2 + 2) x 20.
    assert note(store, report(64, 5), report(65, 1, 100.0), report(66, 2, 20.0)) == 3
    assert note(store, report(66, 2, 20.0)) == 1
    found = ranked(store)
    assert [(item.problem.m, item.stake_s) for item in found] == [(65, 1e-4), (66, 8e-5), (64, 5e-5)]
    assert [item.count for item in found] == [1, 4, 5]
    assert found[1].last_seen > found[1].first_seen
    assert ranked(store, limit=1) == found[:1]


def test_the_same_problem_twice_in_a_report_counts_twice(store: Store) -> None:
    assert note(store, report(64, 2), report(64, 3)) == 2
    assert [item.count for item in ranked(store)] == [5]


def test_classes_are_apart(store: Store) -> None:
    note(store, report(64))
    note(store, report(64), report(65, 9), of=OTHER_CLASS)
    assert len(ranked(store)) == 1
    assert [item.device_class for item in ranked(store, None)] == [OTHER_CLASS, HOST_CLASS, OTHER_CLASS]


def test_a_measured_time_replaces_an_estimate_and_not_the_reverse(store: Store) -> None:
    note(store, report(64, 1, 10.0))
    note(store, report(64, 1, 30.0, measured=True))
    note(store, report(64, 1, 5.0))
    (found,) = ranked(store)
    assert (found.time_us, found.measured, found.count) == (30.0, True, 3)


def test_a_result_closes_a_miss(store: Store) -> None:
    note(store, report(64), report(65))
    tune(store, 64)
    assert [item.problem.m for item in ranked(store)] == [65]
    note(store, report(64, 5))
    assert [item.problem.m for item in ranked(store)] == [65], "an old client reports what is tuned by now"


def test_a_stale_result_is_open_until_it_is_replaced(store: Store) -> None:
    tune(store, 64)
    note(store, report(64, 1, 7.0, measured=True), reason="stale")
    (found,) = ranked(store)
    assert (found.reason, found.time_us) == ("stale", 7.0)
    note(store, report(64))
    assert [item.reason for item in ranked(store)] == ["stale"], "a report does not hide that it is stale"
    tune(store, 64)
    assert ranked(store) == []
    note(store, report(64), reason="stale")
    assert [item.count for item in ranked(store)] == [3]


def queue(store: Store, m: int) -> str:
    with store.begin() as session:
        return jobs.submit(session, request(m), HOST)[0].id


def end(store: Store, job_id: str) -> None:
    with store.begin() as session:
        jobs.finish(session, job_id, JobStatus.FAILED, "no kernel")


def test_a_problem_that_a_job_is_at_is_not_listed_until_that_ends_without_a_result(store: Store) -> None:
    note(store, report(64), report(65), report(66))
    note(store, report(64), of=OTHER_CLASS)
    queued, running = queue(store, 64), queue(store, 65)
    with store.begin() as session:
        while claims.claim(session, HOST_CLASS, "me").id != running:
            pass
    assert [item.problem.m for item in ranked(store)] == [66]
    assert [item.problem.m for item in ranked(store, OTHER_CLASS)] == [64], "that job is of another class"
    assert note(store, report(64, 9), report(67), most=3) == 1, "it keeps its place in a full list"
    end(store, queued)
    assert [(item.problem.m, item.count) for item in ranked(store)] == [(64, 10), (66, 1)]


def test_pages_follow_one_another_also_where_stakes_are_equal(store: Store) -> None:
    note(store, *(report(m, time_us=1 / 3) for m in range(1, 6)), report(9, 7, 0.1), report(8, 1, 0.0))
    whole = ranked(store)
    paged: list[OpenMiss] = []
    with store.read() as session:
        while page := misses.ranked(session, HOST_CLASS, 2, paged[-1].place if paged else None):
            paged += page
    assert paged == whole
    assert [item.problem.m for item in whole] == [9, 1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("micros", [1e-300, 0.1, 1e12])
def test_a_page_may_end_at_any_stake(store: Store, micros: float) -> None:
    note(store, report(64, 10**9, micros))
    (found,) = ranked(store)
    assert miss_place(cursor(_cursor(found.place))) == found.place


@pytest.mark.parametrize("most", [0, 2])
def test_the_list_is_bounded_and_known_problems_still_count(store: Store, most: int) -> None:
    assert note(store, *(report(m) for m in range(1, 6)), most=most) == most
    assert note(store, report(1, 4), most=most) == min(most, 1)
    assert len(ranked(store)) == most


def test_classes_that_nobody_has_share_one_list(store: Store) -> None:
    with store.begin() as session:
        entities.see_device(session, HOST)
    assert sum(note(store, report(1), report(2), most=5, of=f"made-up-{number}") for number in range(9)) == 5
    assert note(store, report(1), report(2), report(3), most=3) == 3, "a list of its own"
    with store.begin() as session:
        session.execute(update(MissRow).values(last_seen=utc_now() - timedelta(days=31)))
    assert note(store, report(7), most=5, of="made-up-next") == 1, "what was not seen for a month makes room"
    assert len(ranked(store)) == 3


@pytest.mark.parametrize(
    "databases", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"], indirect=True
)
def test_any_number_makes_room_at_once(store: Store) -> None:
    """Of a statement's parameters PostgreSQL takes 65,535."""
    note(store, report(1), of="made-up-0")
    with store.begin() as session:
        [one] = session.scalars(select(MissRow))
        same = values_of(one)
        long_ago = same | {"last_seen": utc_now() - timedelta(days=31)}
        session.execute(
            insert(MissRow), [long_ago | {"device_class": f"made-up-{n}"} for n in range(1, 66_000)]
        )
    assert note(store, report(2), most=2, of="made-up-0") == 1
    assert len(ranked(store, None)) == 2


@pytest.mark.parametrize("of", [HOST_CLASS, "made-up"])
def test_no_caller_fills_a_list_for_the_others(store: Store, of: str) -> None:
    tune(store, 999)  # so that one class was seen
    flood = [report(m, count=m, time_us=1e6) for m in range(1, 7)]
    assert note(store, *flood, most=6, of=of, caller="flood") == 6
    assert note(store, report(11), report(12), most=6, of=of, caller="one") == 2
    assert note(store, report(21), most=6, of=of, caller="two") == 1
    assert {one.problem.m for one in ranked(store, of)} == {4, 5, 6, 11, 12, 21}, "its least stakes go"
    assert note(store, *(report(m) for m in range(30, 40)), most=6, of=of, caller="two") == 1
    assert note(store, report(7), most=6, of=of, caller="flood") == 0, "all have the same now"
    assert len(ranked(store, of)) == 6


@pytest.fixture
def statements(store: Store) -> list[str]:
    found = list[str]()

    def note_it(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(" ".join(statement.split()))

    event.listen(store.engine, "before_cursor_execute", note_it)
    return found


def of_lists(statements: list[str]) -> list[str]:
    """Those that go through a list, or delete from it."""
    found = [one for one in statements if "GROUP BY miss.caller" in one or "DELETE FROM miss" in one]
    statements.clear()
    return found


def test_room_is_made_for_one_percent_of_a_list_at_once(store: Store, statements: list[str]) -> None:
    note(store, *(report(m, count=m) for m in range(1, 301)), most=300, caller="flood")
    assert of_lists(statements) == []
    assert note(store, report(1001), most=300, caller="one") == 1
    assert [item.problem.m for item in ranked(store, limit=1000)][-4:] == [6, 5, 4, 1001]
    assert len(of_lists(statements)) == 3, "two looks and a deletion"
    for m in (1002, 1003):
        assert note(store, report(m), most=300, caller="two") == 1
    assert of_lists(statements) == []
    assert len(ranked(store, limit=1000)) == 300


def test_no_more_room_is_made_than_leaves_the_other_caller_ahead(store: Store) -> None:
    for number in range(100):
        note(store, *(report(10 * number + m) for m in range(1, 4)), most=300, caller=f"caller {number}")
    assert note(store, report(1001), most=300, caller="late") == 1
    held = Counter(row.caller for row in rows(store))
    assert (min(held.values()), held.total()) == (1, 298), "each of three loses one, as many as one percent"


def rows(store: Store) -> list[MissRow]:
    with store.read() as session:
        return list(session.scalars(select(MissRow)))


def test_a_report_that_is_dropped_deletes_nothing(store: Store, statements: list[str]) -> None:
    note(store, report(1), report(2), most=2, caller="one")
    statements.clear()
    assert note(store, report(3), most=2, caller="one") == 0
    found = of_lists(statements)
    assert (len(found), [one for one in found if "DELETE" in one]) == (2, []), "two looks"


def test_a_report_that_is_dropped_goes_through_the_list_before_it_holds_up_writers(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Settings(database_url=databases.copy(migrate), max_misses=2))
    http, held = TestClient(app, "http://localhost"), list[object]()

    def post(*ms: int) -> dict[str, int]:
        of = [{"m": m, "n": 8, "k": 8, "dtype": "float32"} for m in ms]
        answer = http.post("/misses", json={"device_class": HOST_CLASS, "misses": of})
        found: dict[str, int] = answer.json()
        return found

    monkeypatch.setattr(misses, "hold", lambda *given: held.append(given))
    assert post(1, 2) == {"noted": 2, "dropped": 0}
    assert post(3) == {"noted": 0, "dropped": 1}
    assert post(4, 2, 5, 5) == {"noted": 1, "dropped": 3}
    assert held == []
    assert [one.count for one in ranked(app.state.service.store)] == [2, 1]
    app.state.service.served.close()
    app.state.service.store.close()


def test_a_list_that_grew_too_long_is_cut_back(store: Store) -> None:
    note(store, *(report(m, count=m) for m in range(1, 9)), most=8, caller="one")
    note(store, report(20), report(21), most=10, caller="two")
    assert note(store, report(1), most=6, caller="two") == 1
    assert {one.problem.m for one in ranked(store)} == {5, 6, 7, 8, 20, 21}


def test_stale_results_make_no_room(store: Store) -> None:
    tune(store, 1)
    note(store, report(1), most=2, reason="stale")
    note(store, report(2), most=2, caller="one")
    assert note(store, report(3), most=2, caller="two") == 0
    assert {one.problem.m for one in ranked(store)} == {1, 2}


def test_reports_of_the_same_problems_in_any_order_wait_for_each_other(store: Store) -> None:
    """PostgreSQL would end one of two that wait for rows of each other."""
    every = [report(m) for m in range(1, 41)]

    def often(first: int) -> None:
        for _ in range(5):
            note(store, *(every[first:] + every[:first])[:: 1 if first % 2 else -1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(often, (0, 11, 20, 31)))
    assert {miss.count for miss in ranked(store)} == {20}


def test_callers_of_a_full_list_wait_for_each_other(store: Store) -> None:
    def often(number: int) -> None:
        for turn in range(10):
            some = [report(100 * number + turn + m) for m in range(12)]
            note(store, *(some if turn % 2 else reversed(some)), most=20, caller=f"caller {number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(often, range(1, 5)))
    assert {one.problem.m // 100 for one in ranked(store)} == {1, 2, 3, 4}


def test_what_was_tuned_makes_room(store: Store) -> None:
    note(store, report(1), report(2), most=2)
    tune(store, 1)
    assert note(store, report(3), report(4), most=2) == 1
    assert {item.problem.m for item in ranked(store)} == {2, 3}


BENCH: Any = SimpleNamespace(name="host", spec=HOST, driver="driver 1")
MINE = staleness.state(["driver 1"])
OTHERS = staleness.state(["driver 2"])


def note_stale(store: Store, *stakes: tuple[int, float], wanted: str = MINE) -> None:
    reports = [Report(problem(m), 1, stake, True) for m, stake in stakes]
    with store.begin() as session:
        kept = misses.note(session, HOST_CLASS, reports, 100, "stale")
        misses.ask(session, HOST_CLASS, kept, wanted)


def stalest(store: Store, wanted: str = MINE) -> int | None:
    with store.read() as session:
        found = misses.top(session, HOST_CLASS, wanted)
    return found.m if found else None


def take(store: Store, m: int, wanted: str = MINE) -> bool:
    with store.begin() as session:
        return misses.take(session, HOST_CLASS, problem(m), wanted)


def queued(store: Store) -> list[int]:
    with store.read() as session:
        return [job.request.problem.m for job in jobs.listing(session)]


def end_all(store: Store, status: JobStatus = JobStatus.FAILED) -> None:
    with store.begin() as session:
        for job in jobs.listing(session):
            jobs.finish(session, job.id, status, "no kernel")


def queue_stalest(store: Store, **settings: Any) -> bool:
    return retune.queue_stalest(store, BENCH, Settings(**settings))


def test_each_is_taken_up_once_the_largest_stake_first(store: Store) -> None:
    for m in (64, 65):
        tune(store, m)
    assert stalest(store) is None
    note_stale(store, (64, 5.0), (65, 9.0))
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
            # Each service starts anew and serves what it finds stale.
            note_stale(store, (64, 5.0), wanted=wanted)
            assert stalest(store, OTHERS if wanted is MINE else MINE) is None, "that is not for this one"
            if stalest(store, wanted):
                assert take(store, 64, wanted)
                tune(store, 64)
                order.append(wanted)
    assert order == [MINE, OTHERS]


def test_a_result_that_was_replaced_by_another_state_waits_to_be_served_again(store: Store) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
    tune(store, 64)
    assert stalest(store) is None
    note_stale(store, (64, 5.0))
    assert stalest(store) == 64


def test_a_job_is_queued_once_and_joined_jobs_are_waited_for(store: Store) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
    assert queue_stalest(store)
    for _ in range(3):
        assert not queue_stalest(store), "nothing new: the queue has to wait"
    end_all(store)
    assert not queue_stalest(store), "a job that failed is not repeated"
    assert queued(store) == [64]


def test_a_job_that_came_in_between_is_joined_and_no_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
    with store.begin() as session:
        jobs.submit(session, TuneRequest(problem(64), max_trials=100), HOST)
    monkeypatch.setattr(misses, "top", lambda *_args: problem(64))  # looked before that
    assert not queue_stalest(store)
    assert queued(store) == [64]


def test_a_problem_that_any_job_is_at_is_left_alone(store: Store) -> None:
    tune(store, 64)
    with store.begin() as session:
        jobs.submit(session, request(64), HOST)
    note_stale(store, (64, 5.0))  # served, stale, after that job was queued
    assert not queue_stalest(store)
    assert queued(store) == [64], "not tuned twice at once with other options"
    end_all(store)
    assert queue_stalest(store)


def test_a_full_queue_holds_retunes_back(store: Store) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
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
    note_stale(store, (64, 9.0))
    assert not queue_stalest(store, **limits)
    assert stalest(store) is None, "it does not stand in the way of others"
    assert queued(store) == []
    note_stale(store, (64, 9.0))
    assert queue_stalest(store)


def results(store: Store, *ms: int) -> list[retune.StaleResult]:
    with store.read() as session:
        return [retune.StaleResult.of(winners.exact(session, HOST_CLASS, problem(m))[0]) for m in ms]


def noted(store: Store) -> dict[int, int]:
    with store.read() as session:
        return {miss.problem.m: miss.count for miss in misses.ranked(session, HOST_CLASS, 100)}


def watching(store: Store, most: int) -> retune.StaleResults:
    return retune.StaleResults(store, Settings(max_misses=most), lambda _class: MINE)


def test_a_served_result_is_noted_once(store: Store) -> None:
    tune(store, 64)
    stale = watching(store, 10)
    for _ in range(2):
        stale.served(results(store, 64))
    assert noted(store) == {64: 1}
    assert stalest(store) == 64


def test_races_without_number_take_no_more_memory_than_their_problem(store: Store) -> None:
    stale, first, last = watching(store, 10), list[retune.StaleResult](), list[retune.StaleResult]()
    for turn in range(5):
        tune(store, 64)
        last = results(store, 64)
        first = first or last
        assert stale.is_due(last[0])
        stale.served(last)
        assert not stale.is_due(last[0])
        assert noted(store) == {64: 1 + turn}, "a replaced winner is another result"
    assert len(stale._noted) == 1
    assert first != last


def test_what_a_full_list_dropped_is_noted_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for m in (64, 65):
        tune(store, m)
    stale = watching(store, 1)
    stale.served(results(store, 64, 65))
    assert noted(store) == {64: 1}
    tune(store, 64)
    stale.served(results(store, 65))
    assert noted(store) == {}, "not at once: a full list costs no transaction for every answer"
    now = retune.time.monotonic() + retune.AGAIN_S
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
    monkeypatch.setattr(retune, "AGAIN_S", 0.0)
    now = retune.time.monotonic() + 60.0
    monkeypatch.setattr(retune.time, "monotonic", lambda: now)
    stale.served(served)
    assert noted(store) == {64: 1}


def test_an_answer_is_no_failure_where_its_stale_result_was_not_noted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(store, 64)
    [served] = results(store, 64)
    engine = SimpleNamespace(queues={})
    service: Any = SimpleNamespace(stale=watching(store, 10), engine=engine, metrics=Metrics())
    monkeypatch.setattr(retune.misses, "note", lambda *_args, **_options: failing())
    answer = best_routes._sent(service, Answer(b"{}", "tag", "exact", HOST_CLASS, None, served), None)
    assert answer.background is not None
    asyncio.run(answer.background())


def failing() -> None:
    raise OperationalError("INSERT", {}, Exception("disk full"))


def tuned_ladder(store: Store) -> TuneRequest:
    """A request whose job has a winner for each row."""
    wanted = TuneRequest(problem(64), (16, 32, 64), max_trials=20)
    with store.begin() as session:
        job, _ = jobs.submit(session, wanted, HOST)
        assert claims.claim(session, HOST_CLASS, "me")
    recorder = JobRecorder(store, job.id)
    for m in wanted.ladder:
        kernels = (LadderKernel(artifact().digest, 0.0, 1.2),)
        recorder.set_best(dataclasses.replace(best(problem(m)), kernels=kernels), artifact())
    end_all(store, JobStatus.SUCCEEDED)
    return wanted


def test_a_stale_row_is_tuned_again_with_its_ladder_once(store: Store) -> None:
    wanted = tuned_ladder(store)
    note_stale(store, (32, 5.0), (16, 4.0))
    assert queue_stalest(store)
    with store.read() as session:
        (again, _) = jobs.listing(session)
    assert again.request == dataclasses.replace(wanted, max_trials=100)
    end_all(store, JobStatus.FAILED)
    assert not queue_stalest(store), "the job was for its other rows too"


def test_what_failed_is_tuned_again_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(store, 65)
    tuned_ladder(store)
    note_stale(store, (65, 9.0), (32, 5.0))
    assert [queue_stalest(store), queue_stalest(store)] == [True, True]
    end_all(store, JobStatus.FAILED)
    assert stalest(store) is None, "not at once"
    monkeypatch.setattr(misses, "AFTER_FAILURE", timedelta(seconds=-1))
    assert stalest(store) == 65
    assert [queue_stalest(store), queue_stalest(store), queue_stalest(store)] == [True, True, False]
    end_all(store, JobStatus.CANCELLED)
    assert stalest(store) is None, "that was no failure"


def test_what_others_disturbed_is_tuned_again_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job succeeds, and the stale winner stays."""
    tune(store, 65)
    tuned_ladder(store)
    note_stale(store, (65, 9.0), (32, 5.0))
    assert [queue_stalest(store), queue_stalest(store)] == [True, True]
    with store.begin() as session:
        assert not winners.put(session, best(problem(65), disturbed="another process ran"))
    end_all(store, JobStatus.SUCCEEDED)
    assert stalest(store) is None, "not at once"
    monkeypatch.setattr(misses, "AFTER_FAILURE", timedelta(seconds=-1))
    assert stalest(store) == 65
    tune(store, 65)
    assert stalest(store) == 32
    note_stale(store, (65, 9.0))
    assert stalest(store) == 32, "what settled it is stale to another service, not to this one"


def test_what_took_the_place_of_a_deleted_result_is_tuned_again(store: Store) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
    assert take(store, 64)
    with store.begin() as session:
        imports.remove_best(session, HOST_CLASS, problem(64))
    tune(store, 64)
    note_stale(store, (64, 5.0))
    assert stalest(store) == 64


def test_a_quick_result_in_the_place_of_a_quarantined_one_is_tuned_in_full(store: Store) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
    assert queue_stalest(store)
    tune(store, 64)
    end_all(store, JobStatus.SUCCEEDED)
    broken = Trial(0, best(problem(64)).config, outcome=Outcome.TIMEOUT, provenance=PROVENANCE)
    quick = dataclasses.replace(PROVENANCE, method=PROVENANCE.method + QUICK_METHOD)
    with store.begin() as session:
        assert quarantine.put(session, broken, quarantine.Evidence(problem(64), None, "host"))
        assert winners.put(
            session, dataclasses.replace(best(problem(64)), config=config(48), provenance=quick)
        )
    note_stale(store, (64, 5.0))
    assert stalest(store) == 64
    assert queue_stalest(store)
    end_all(store, JobStatus.CANCELLED)
    assert stalest(store) is None, "once"


def test_damaged_json_of_a_winner_keeps_no_device_from_others(sqlite_databases: Databases) -> None:
    """PostgreSQL checks JSON by itself."""
    with opened(sqlite_databases.copy(migrate)) as store:
        for m in (64, 65):
            tune(store, m)
        note_stale(store, (64, 9.0), (65, 5.0))
        assert take(store, 64)
        tune(store, 64)
        note_stale(store, (64, 9.0))
        with store.begin() as session:
            session.execute(text("UPDATE best_config SET provenance = '{\"meth'"))
        assert stalest(store) == 65


def test_what_drifts_anew_is_tuned_anew(store: Store) -> None:
    tune(store, 64)
    note_stale(store, (64, 5.0))
    assert queue_stalest(store)
    tune(store, 64)
    end_all(store, JobStatus.SUCCEEDED)
    note_stale(store, (64, 5.0))
    assert stalest(store) is None
    with store.begin() as session:
        session.execute(update(BestConfigRow).values(drifted=utc_now()))
    assert stalest(store) == 64
    assert queue_stalest(store)
    end_all(store, JobStatus.CANCELLED)
    assert stalest(store) is None


def test_a_stale_row_that_is_left_of_its_ladder_is_tuned_alone(store: Store) -> None:
    tuned_ladder(store)
    with store.begin() as session:
        for m in (16, 64):
            remove_problem(session, problem(m))
    note_stale(store, (32, 5.0))
    assert queue_stalest(store)
    with store.read() as session:
        (again, *_) = jobs.listing(session)
    assert again.request == TuneRequest(problem(32), max_trials=100)


ABLE, UNABLE = frozenset({"host", "simt"}), frozenset[str]()


def test_the_top_of_those_wanted_is_found_behind_any_number_of_others(store: Store) -> None:
    note(store, *(report(m, count=1 + m // 2) for m in range(1, 8)))  # pairs of one stake

    def top(count: int, *wanted: int, families: tuple[str, ...] = ()) -> list[int]:
        def able(one: GemmProblem) -> frozenset[str]:
            return ABLE if one.m in wanted else UNABLE

        with store.read() as session:
            found = misses.top_of(session, HOST_CLASS, count, families, able, {})
            assert misses.top_of(session, OTHER_CLASS, count, families, able, {}) == []
        return [miss.problem.m for miss in found]

    assert top(2, 1, 2, 4) == [4, 2]
    assert top(9, 1, 2, 4) == top(9, 1, 2, 4, families=("host",)) == [4, 2, 1]
    assert top(9, 1, 2, 4, families=("host", "gemv")) == []
    assert top(1, 1) == [1]
    assert top(9) == []


def test_what_no_family_computes_is_found_out_once(store: Store) -> None:
    """Each of 10,000 took 50 us whenever somebody asked for jobs."""
    vain, known, asked = range(2, 10_002), dict[str, frozenset[str]](), list[int]()
    note(store, report(1))
    with store.begin() as session:
        (first,) = session.scalars(select(MissRow))
        of_miss = values_of(first) | {"count": 5}
        of_problem = values_of(session.scalars(select(ProblemRow)).one())
        texts = {m: canonical(problem(m).to_dict()) for m in vain}
        session.execute(insert(ProblemRow), [of_problem | {"m": m, "canonical": texts[m]} for m in vain])
        ids = session.scalars(select(ProblemRow.id).where(ProblemRow.m > 1))
        session.execute(insert(MissRow), [of_miss | {"problem_id": one} for one in ids])

    def able(one: GemmProblem) -> frozenset[str]:
        asked.append(one.m)
        return ABLE if one.m == 1 else UNABLE

    def top() -> list[int]:
        """The top, and how many were asked about."""
        asked.clear()
        with store.read() as session:
            found = misses.top_of(session, HOST_CLASS, 1, (), able, known)
        return [*(miss.problem.m for miss in found), len(asked)]

    assert top() == [1, 10_001]
    assert top() == [1, 0]
    note(store, report(20_000, count=9), most=20_000)
    assert top() == [1, 1]
    with store.begin() as session:
        session.execute(delete(MissRow).where(MissRow.problem_id != first.problem_id))
    assert top() == [1, 0]
    assert list(known) == [canonical(problem(1).to_dict())], "those that are gone are forgotten"


def values_of(row: MissRow | ProblemRow) -> dict[str, Any]:
    """A row without its id."""
    return {one.key: getattr(row, one.key) for one in row.__table__.columns if one.key != "id"}


def test_what_a_job_took_up_since_is_no_open_miss_any_more(store: Store) -> None:
    note(store, report(1), report(2, count=5), report(3, count=3))
    found = ranked(store)
    with store.begin() as session:
        assert misses.still_open(session, found[1:]) == found[1:]
        jobs.submit(session, request(3), HOST)
        assert misses.still_open(session, found) == [found[0], found[2]]
        assert misses.still_open(session, []) == []
