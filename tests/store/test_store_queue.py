"""The queue between callers: each has its turn, keys of a higher priority go first, and none fills it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from store_samples import HOST, HOST_CLASS, UNTRUSTED, request

from service.engine import admission
from service.errors import Kind, Refusal
from service.settings import Settings
from tilewright.schema.job import JobStatus
from tuner.store import exchange, imports, jobs
from tuner.store.access import audit, keys
from tuner.store.access.audit import Action
from tuner.store.database import Store
from tuner.store.exchange import EndedJob
from tuner.store.models import ApiKeyRow, AuditRow, JobRow
from tuner.store.queue import claims
from tuner.store.records import JobRecord, utc_now


def queue(store: Store, caller: str | None, *extents: int, minutes_ago: float = 0.0) -> None:
    for m in extents:
        with store.begin() as session:
            job, _ = jobs.submit(session, request(m), HOST, caller)
            created = utc_now() - timedelta(minutes=minutes_ago)
            session.execute(update(JobRow).where(JobRow.id == job.id).values(created=created))


def claimed(store: Store, count: int) -> list[int]:
    """The extents of the jobs that a device takes, in their order."""
    found = []
    for _ in range(count):
        with store.begin() as session:
            job = claims.claim(session, HOST_CLASS, "me")
        assert job is not None
        found.append(job.request.problem.m)
    return found


def key(store: Store, priority: int, max_queued: int | None = None) -> str:
    with store.begin() as session:
        record, _ = keys.create(session, "someone", frozenset({"tune"}))
        keys.set_quota(session, record.id, max_queued, priority)
    return record.id


def test_callers_take_turns_and_each_is_served_in_order(store: Store) -> None:
    queue(store, "192.0.2.1", 1, 2, 3, 4, 5)
    queue(store, "192.0.2.2", 11, 12)
    queue(store, None, 21)
    assert claimed(store, 8) == [1, 11, 21, 2, 12, 3, 4, 5]


def test_one_who_had_turns_before_waits_for_one_who_had_none(store: Store) -> None:
    queue(store, "192.0.2.1", 1, 2, 3)
    assert claimed(store, 2) == [1, 2]
    queue(store, "192.0.2.2", 11)
    assert claimed(store, 2) == [11, 3]


def test_turns_are_by_the_seconds_that_jobs_had_a_device(store: Store) -> None:
    queue(store, "192.0.2.1", 1, 2, minutes_ago=120)
    queue(store, "192.0.2.2", 11, 12, 13, minutes_ago=120)
    assert claimed(store, 2) == [1, 11]
    spent(store, 1, minutes=20, ago=30)
    spent(store, 11, minutes=5, ago=2)
    assert claimed(store, 2) == [12, 13], "had less, though its last job started later"
    spent(store, 1, minutes=20, ago=50)
    spent(store, 12, minutes=15, ago=20)
    spent(store, 13, minutes=1, ago=10)
    queue(store, "192.0.2.2", 14)
    assert claimed(store, 2) == [2, 14], "what is longer ago than an hour does not count"


def test_what_one_used_while_nobody_waited_does_not_count(store: Store) -> None:
    queue(store, "192.0.2.1", 1)
    assert claimed(store, 1) == [1]
    spent(store, 1, minutes=50, ago=1)
    queue(store, "192.0.2.2", 11, 12, 13)
    queue(store, "192.0.2.1", 2, 3)
    assert claimed(store, 5) == [11, 2, 12, 3, 13]


def bring(store: Store, ended: datetime) -> None:
    """A job of another service comes: like those of this service it has no caller."""
    started = utc_now() - timedelta(minutes=1)
    job = EndedJob("e" * 32, request(99), HOST, JobStatus.SUCCEEDED, started, ended, started)
    with store.begin() as session:
        imports.enter(session, UNTRUSTED)
        assert exchange.merge_job(session, job, UNTRUSTED)


@pytest.mark.parametrize("brings", [False, True])
def test_what_was_imported_costs_the_service_no_turn(store: Store, brings: bool) -> None:
    if brings:
        bring(store, ended=utc_now() + timedelta(days=3650))
    queue(store, None, 5, minutes_ago=1)
    queue(store, "192.0.2.1", 10, 11, 12, 13, minutes_ago=1)
    assert claimed(store, 5) == [5, 10, 11, 12, 13]


def test_the_service_has_its_turn_also_where_a_job_that_started_later_was_imported(store: Store) -> None:
    queue(store, "192.0.2.1", 11)
    queue(store, None, 1)
    assert claimed(store, 2) == [11, 1]
    spent(store, 11, minutes=1, ago=80)
    spent(store, 1, minutes=1, ago=90)
    bring(store, ended=utc_now())
    queue(store, "192.0.2.1", 12)
    queue(store, None, 2)
    assert claimed(store, 2) == [2, 12], "its last job started longer ago"


def test_a_job_that_waits_again_costs_its_caller_nothing(store: Store) -> None:
    """It was interrupted, then cancelled while it waited."""
    queue(store, "192.0.2.1", 1, minutes_ago=60)
    assert claimed(store, 1) == [1]
    with store.begin() as session:
        (job_id,) = claims.requeue_interrupted(session, HOST_CLASS, "me")
        assert jobs.known(session, job_id).started is None
    queue(store, "192.0.2.2", 11, 12, minutes_ago=60)
    queue(store, "192.0.2.1", 2)
    assert claimed(store, 2) == [1, 11]
    spent(store, 11, minutes=5, ago=1)
    with store.begin() as session:
        began = utc_now() - timedelta(minutes=40)
        session.execute(update(JobRow).where(JobRow.id == job_id).values(started=began))
        claims.requeue_interrupted(session, HOST_CLASS, "me")
        assert jobs.request_cancel(session, job_id)
    assert claimed(store, 2) == [2, 12]


def test_a_claim_reads_the_jobs_that_ended_lately_alone(store: Store) -> None:
    """Of a year of ended jobs; with the plan of either database."""
    queue(store, "192.0.2.1", 1)
    assert claimed(store, 1) == [1]
    spent(store, 1, minutes=1, ago=90)
    with store.begin() as session:
        row = dict(session.execute(select(JobRow.__table__)).mappings().one())
        ended = [
            row | {"id": f"{n:032x}", "active_key": None, "finished": row["finished"] - timedelta(minutes=n)}
            for n in range(3000)
        ]
        session.execute(insert(JobRow), ended)
        session.execute(text("ANALYZE"))
    queue(store, "192.0.2.1", 2)
    queue(store, "192.0.2.2", 11)
    asked = list[tuple[str, Any]]()
    event.listen(store.engine, "before_cursor_execute", lambda *told: asked.append(told[2:4]))
    claimed(store, 2)
    (about_ended,) = [one for one in asked if "job.finished > " in one[0]]
    explain = "EXPLAIN QUERY PLAN " if store.engine.dialect.name == "sqlite" else "EXPLAIN "
    with store.engine.connect() as connection:
        plan = connection.exec_driver_sql(explain + about_ended[0], about_ended[1]).all()
    assert "ix_job_device_class_finished" in str(plan)


def spent(store: Store, m: int, minutes: float, ago: float) -> None:
    """Have a job end so many minutes ago, after so many minutes on its device."""
    with store.begin() as session:
        (job,) = (one for one in jobs.listing(session, m=m) if isinstance(one, JobRecord))
        ended = utc_now() - timedelta(minutes=ago)
        times = {"started": ended - timedelta(minutes=minutes), "finished": ended}
        session.execute(update(JobRow).where(JobRow.id == job.id).values(status=JobStatus.SUCCEEDED, **times))


def test_keys_of_a_higher_priority_go_first(store: Store) -> None:
    low, high = key(store, -1), key(store, 5)
    queue(store, low, 1, 2)
    queue(store, "192.0.2.1", 11)
    queue(store, high, 21, 22)
    assert claimed(store, 5) == [21, 22, 11, 1, 2]


@pytest.mark.parametrize("ended", ["revoked", "expired"])
def test_jobs_of_a_key_that_is_not_valid_any_more_lose_their_priority(store: Store, ended: str) -> None:
    gone, valid, slow = key(store, 9), key(store, 1), key(store, -1)
    queue(store, gone, 1, 2)
    queue(store, slow, 31)
    queue(store, valid, 11, 12)
    queue(store, "192.0.2.1", 21)
    with store.begin() as session:
        for one in (gone, slow):
            if ended == "revoked":
                assert keys.revoke(session, one)
            else:
                late = update(ApiKeyRow).where(ApiKeyRow.id == one)
                session.execute(late.values(expires=utc_now() - timedelta(seconds=1)))
    assert claimed(store, 6) == [11, 12, 1, 21, 2, 31], "as callers without keys, never before what it had"


SETTINGS = Settings(max_queue=6, max_caller_queue=4)


def room(store: Store, caller: str, more: int = 1) -> int:
    with store.read() as session:
        return admission.check_queue(session, caller, SETTINGS, more)


def test_a_caller_leaves_room_for_others(store: Store) -> None:
    queue(store, "192.0.2.1", 1, 2, 3, 4)
    with pytest.raises(
        Refusal, match=r"4 jobs of this caller are queued, all that max_caller_queue allows; try again"
    ) as caught:
        room(store, "192.0.2.1")
    assert caught.value.kind is Kind.QUEUE_FULL
    assert int((caught.value.headers or {})["Retry-After"]) > 0
    assert room(store, "192.0.2.2") == 2
    queue(store, "192.0.2.2", 11, 12)
    with pytest.raises(Refusal, match=r"6 jobs are queued, all that max_queue allows"):
        room(store, "192.0.2.3")


def queued_and_cancelled(store: Store, caller: str, by: str, *extents: int) -> None:
    queue(store, caller, *extents)
    with store.begin() as session:
        for job_id in session.scalars(select(JobRow.id).where(JobRow.status == JobStatus.QUEUED)):
            jobs.request_cancel(session, job_id)
            audit.note(session, audit.who_is(by, by_key=False), Action.CANCEL_JOB, job_id)


def test_who_submits_and_cancels_is_stopped(store: Store) -> None:
    """Each such job leaves rows; the queue does not see them."""
    for first in range(1, 40, 4):
        assert room(store, "192.0.2.1") == 4
        queued_and_cancelled(store, "192.0.2.1", "192.0.2.1", *range(first, first + 4))
    with pytest.raises(Refusal, match="cancelled 40 jobs within a day before they began"):
        room(store, "192.0.2.1")
    assert room(store, "192.0.2.2") == 4
    with store.begin() as session:
        session.execute(update(AuditRow).values(created=utc_now() - timedelta(days=1.01)))
    assert room(store, "192.0.2.1") == 4


def test_what_others_cancel_is_not_charged_to_the_owner(store: Store) -> None:
    for first in range(1, 80, 4):
        queued_and_cancelled(store, "192.0.2.1", "192.0.2.2", *range(first, first + 4))
    assert room(store, "192.0.2.1") == 4


def test_a_key_has_a_limit_of_its_own(store: Store) -> None:
    few, many = key(store, 0, max_queued=1), key(store, 0, max_queued=6)
    assert room(store, few) == 1
    queue(store, few, 1)
    with pytest.raises(
        Refusal, match=r"1 jobs of this caller are queued, all that its key's max_queued allows"
    ):
        room(store, few)
    queue(store, many, 11, 12, 13, 14)
    assert room(store, many) == 1


def joined(store: Store, caller: str, m: int, most: int = 10) -> str | None:
    """A caller joins the job of an extent; whose it was if the caller took it over."""
    with store.begin() as session:
        job, created = jobs.submit(session, request(m), HOST, caller)
        assert not created
        return jobs.hand_over(session, job, caller, most)


def test_a_job_that_waits_goes_with_the_highest_priority_of_those_who_want_it(store: Store) -> None:
    low, high, highest = key(store, 0), key(store, 5), key(store, 9)
    queue(store, low, 1, 2, 3)
    queue(store, None, 4)
    queue(store, "192.0.2.1", 5)
    assert joined(store, high, 3) == f"key {low}"
    assert joined(store, high, 4) == "service"
    assert joined(store, high, 5) == "address 192.0.2.1"
    assert not joined(store, low, 3), "nor does it go back"
    assert not joined(store, "192.0.2.1", 1), "nor to one of the same priority"
    with store.read() as session:
        assert (len(jobs.to_cancel(session, low)), len(jobs.to_cancel(session, high))) == (2, 3)
    assert claimed(store, 3) == [3, 4, 5]
    assert not joined(store, highest, 3), "it runs already"
    assert claimed(store, 2) == [1, 2]
    with store.begin() as session:
        keys.revoke(session, high)
    queue(store, high, 6)
    assert joined(store, key(store, 1), 6) == f"key {high}", "which is not valid any more"


def test_a_job_is_not_handed_to_a_key_that_has_no_room_for_it(store: Store) -> None:
    low, high, small = key(store, 0), key(store, 5), key(store, 9, max_queued=1)
    queue(store, low, 1, 2, 3)
    assert joined(store, small, 2)
    assert not joined(store, small, 3)
    assert [joined(store, high, 3, most) for most in (0, 1)] == [None, f"key {low}"]
    assert claimed(store, 3) == [2, 3, 1]
