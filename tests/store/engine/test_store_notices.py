"""New events as PostgreSQL tells them: at once, across processes, and again after the connection dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from databases import Databases, migrate, opened
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError, InternalError
from store_samples import HOST, request

from service.engine import event_feed
from service.engine.database_health import Outage, outage
from service.engine.event_feed import EventFeed, Follower, Listener
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.engines import postgres_engine
from tuner.store.models import JobRow

PATIENCE_S = 20.0
_DROP = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")


@pytest.fixture
def store(postgresql_databases: Databases) -> Iterator[Store]:
    with opened(postgresql_databases.copy(migrate)) as one:
        yield one


def submitted(store: Store, seed: int = 1) -> str:
    with store.begin() as session:
        return jobs.submit(session, request(seed=seed), HOST)[0].id


def told(store: Store, job_id: str, number: int) -> None:
    with store.begin() as session:
        jobs.append_event(session, job_id, "trial", {"number": number})


def taken_back(store: Store, job_id: str) -> None:
    with store.begin() as session:
        jobs.append_event(session, job_id, "trial", {})
        raise KeyError


def listening(store: Store, work: Callable[[Listener], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` while a listener listens."""

    async def run() -> None:
        listener = Listener(store.engine)
        task = asyncio.create_task(listener.run())
        await until(lambda: listener.on)
        assert listener.take() is None, "what came before it listened is not known"
        try:
            await work(listener)
        finally:
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def heard(listener: Listener) -> set[str]:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := listener.take()):
        assert time.monotonic() < deadline
        await listener.wait(1.0)
    return found


def test_what_was_committed_is_heard_and_what_was_taken_back_is_not(store: Store) -> None:
    first, second = submitted(store), submitted(store, 2)

    async def work(listener: Listener) -> None:
        with pytest.raises(KeyError):
            taken_back(store, second)
        told(store, first, 1)
        assert await heard(listener) == {first}
        with store.begin() as session:
            for job_id in (first, second, second):
                jobs.append_event(session, job_id, "trial", {})
        names = set[str]()
        while names != {first, second}:
            names |= await heard(listener)
        assert listener.take() == set()

    listening(store, work)


def test_after_the_connection_dropped_all_is_read_and_it_listens_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_RECONNECT_S", 0.1)
    job_id = submitted(store)

    async def work(listener: Listener) -> None:
        with store.engine.connect() as connection:
            assert connection.execute(_DROP).all() == [(True,)]
        await until(lambda: not listener.on)
        assert listener.take() is None
        await until(lambda: listener.on)
        assert listener.take() is None
        told(store, job_id, 1)
        assert await heard(listener) == {job_id}

    listening(store, work)


def test_it_listens_again_after_an_error_that_it_does_not_know(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_feed, "_RECONNECT_S", 0.01)
    listen, job_id, tries = Listener._listen, submitted(store), list[int]()

    async def broken_once(listener: Listener) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise KeyError("notice")
        await listen(listener)

    async def work(listener: Listener) -> None:
        told(store, job_id, 1)
        assert await heard(listener) == {job_id}

    monkeypatch.setattr(Listener, "_listen", broken_once)
    listening(store, work)
    assert "events are polled until listening works again" in caplog.messages


async def _numbers(follower: Follower, count: int) -> list[int]:
    found = list[int]()
    while len(found) < count:
        news = await asyncio.wait_for(follower.news(), PATIENCE_S)
        assert follower.ended is None
        found += [event.data["number"] for event in news.events if event.kind == "trial"]
    return found


def test_followers_hear_at_once_and_only_their_jobs_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "QUIET_S", 60.0)
    read, looks = event_feed._read, list[dict[str, int]]()

    def counted(store: Store, last: dict[str, int]) -> Any:
        looks.append(last)
        return read(store, last)

    monkeypatch.setattr(event_feed, "_read", counted)
    mine, also, foreign = (submitted(store, seed) for seed in (1, 2, 3))

    async def run() -> None:
        feed = EventFeed(store, lambda: False)
        with feed.follow(mine, 0) as follower, feed.follow(also, 0):
            told(store, mine, 0)
            assert await _numbers(follower, 1) == [0]
            await asyncio.sleep(3 * event_feed.POLL_S)
            monkeypatch.setattr(event_feed, "POLL_S", PATIENCE_S)
            looks.clear()
            for number in range(1, 20):
                started = time.monotonic()
                await asyncio.to_thread(told, store, foreign, number)
                await asyncio.to_thread(told, store, mine, number)
                assert await _numbers(follower, 1) == [number]
                took.append(time.monotonic() - started)
            assert {frozenset(named) for named in looks} == {frozenset([mine])}

    took = list[float]()
    asyncio.run(run())
    assert sum(took) < PATIENCE_S, "no event waited for the next poll"


@pytest.mark.parametrize("failing", ["tell", "listen"])
def test_an_event_that_nobody_told_of_arrives(
    store: Store, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr(event_feed, "QUIET_S", 0.5)
    if failing == "tell":
        monkeypatch.setattr(postgres_engine, "notify", lambda *_: None)
    else:
        monkeypatch.setattr(event_feed, "EVENTS", "not a channel")
    job_id = submitted(store)

    async def run() -> None:
        with EventFeed(store, lambda: False).follow(job_id, 0) as follower:
            await asyncio.sleep(2 * event_feed.POLL_S)
            await asyncio.to_thread(told, store, job_id, 7)
            assert await _numbers(follower, 1) == [7]

    asyncio.run(run())


def test_a_notice_that_fails_costs_nothing_but_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_engine, "_NOTIFY", text("SELECT no_such_function(:channel, :jobs)"))
    job_id = submitted(store)
    told(store, job_id, 1)
    with store.read() as session:
        assert [event.kind for event in jobs.events_after(session, job_id)] == ["status", "trial"]


def test_both_ends_of_a_connection_notice_that_the_other_is_gone(postgresql_databases: Databases) -> None:
    url = postgresql_databases.copy(migrate)
    with opened(f"{url}?keepalives_idle=7") as store, store.engine.connect() as connection:
        names = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"]
        shown = [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names]
        assert shown == ["10", "5", "3", "25000"]
        assert connection.connection.driver_connection is not None
        given = connection.connection.driver_connection.info.get_parameters()
        assert (given["keepalives_idle"], given["tcp_user_timeout"]) == ("7", "25000")


def test_a_process_that_is_stopped_keeps_no_lock_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its system goes on answering for it, so that keepalives do not tell."""
    monkeypatch.setitem(postgres_engine.ALIVE, "tcp_user_timeout", 300)
    job_id = submitted(store)
    lock = select(JobRow.id).where(JobRow.id == job_id).with_for_update()

    def stopped() -> None:
        with store.begin() as session:
            session.execute(lock)
            with store.begin() as other:  # waits for the lock
                other.execute(lock)
            session.execute(lock)

    with pytest.raises(InternalError, match="idle-in-transaction") as ended:
        stopped()
    assert outage(ended.value) is Outage.DOWN
    with store.read() as session:
        shown = session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    assert shown == "0", "a reader may be as slow as who reads its answer"


def test_a_server_that_is_lost_as_a_transaction_begins_is_an_outage(store: Store) -> None:
    """Its connection was found alive just before."""
    lost: list[int] = []

    def lose(connection: Any, *_: object) -> None:
        if not lost:
            lost.append(connection.info.backend_pid)
            with store.read() as session:
                session.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": lost[0]})

    event.listen(store.engine, "checkout", lose)
    with pytest.raises(DBAPIError) as ended:
        submitted(store)
    assert outage(ended.value) is Outage.DOWN
    assert submitted(store)
