"""Misses: added up, ranked by the time at stake, closed by results, bounded."""

from __future__ import annotations

import pytest
from store_samples import HOST, HOST_CLASS, OTHER_CLASS, artifact, best, problem, request

from tuner.store import artifacts, jobs, misses
from tuner.store import best as winners
from tuner.store.database import Store
from tuner.store.misses import MissRecord, Report
from tuner.store.records import JobStatus


def report(m: int, count: int = 1, time_us: float = 10.0, measured: bool = False) -> Report:
    return Report(problem(m), count, time_us, measured)


def note(store: Store, *reports: Report, most: int = 100, reason="missing", of: str = HOST_CLASS) -> int:
    with store.begin() as session:
        return len(misses.note(session, of, reports, most, reason))


def ranked(store: Store, device_class: str | None = HOST_CLASS, limit: int = 100) -> list[MissRecord]:
    with store.read() as session:
        return misses.ranked(session, device_class, limit)


def tune(store: Store, m: int) -> None:
    with store.begin() as session:
        artifacts.put(session, artifact())
        winners.put(session, best(problem(m)))


def test_counts_add_up_and_rank_by_the_time_at_stake(store: Store) -> None:
    # Stakes in us: 64 -> 5 x 10, 65 -> 1 x 100, 66 -> (2 + 2) x 20.
    assert note(store, report(64, 5), report(65, 1, 100.0), report(66, 2, 20.0)) == 3
    assert note(store, report(66, 2, 20.0)) == 1
    found = ranked(store)
    assert [(item.problem.m, item.stake_us) for item in found] == [(65, 100.0), (66, 80.0), (64, 50.0)]
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
        while jobs.claim(session, HOST_CLASS, "me").id != running:
            pass
    assert [item.problem.m for item in ranked(store)] == [66]
    assert [item.problem.m for item in ranked(store, OTHER_CLASS)] == [64], "that job is of another class"
    assert note(store, report(64, 9), report(67), most=3) == 1, "it keeps its place in a full list"
    end(store, queued)
    assert [(item.problem.m, item.count) for item in ranked(store)] == [(64, 10), (66, 1)]


def test_pages_follow_one_another_also_where_stakes_are_equal(store: Store) -> None:
    note(store, *(report(m, time_us=1 / 3) for m in range(1, 6)), report(9, 7, 0.1), report(8, 1, 0.0))
    whole = ranked(store)
    paged: list[MissRecord] = []
    with store.read() as session:
        while page := misses.ranked(session, HOST_CLASS, 2, paged[-1].place if paged else None):
            paged += page
    assert paged == whole
    assert [item.problem.m for item in whole] == [9, 1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("most", [0, 2])
def test_the_list_is_bounded_and_known_problems_still_count(store: Store, most: int) -> None:
    assert note(store, *(report(m) for m in range(1, 6)), most=most) == most
    assert note(store, report(1, 4), most=most) == min(most, 1)
    assert len(ranked(store)) == most


def test_what_was_tuned_makes_room(store: Store) -> None:
    note(store, report(1), report(2), most=2)
    tune(store, 1)
    assert note(store, report(3), report(4), most=2) == 1
    assert {item.problem.m for item in ranked(store)} == {2, 3}
