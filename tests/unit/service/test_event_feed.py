"""Followers of jobs: the database is read after commits, and every event arrives, however many at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from store_samples import HOST, request

from service.engine import event_feed
from service.engine.event_feed import BATCH, EventFeed, Follower, News
from service.errors import Kind, Refusal
from service.http import access
from service.http.pages import now as pages
from service.http.routes import jobs as job_routes
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.engines.sqlite_engine import Changes
from tuner.store.records import EventRecord, utc_now

PATIENCE_S = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")
    opened.migrate()
    yield opened
    opened.close()


def submitted(store: Store) -> str:
    with store.begin() as session:
        return jobs.submit(session, request(), HOST)[0].id


def tried(store: Store, job_id: str, first: int, count: int) -> None:
    with store.begin() as session:
        for number in range(first, first + count):
            jobs.append_event(session, job_id, "trial", {"number": number})


async def _numbers(follower: Follower) -> list[int]:
    news = await asyncio.wait_for(follower.news(), PATIENCE_S)
    assert follower.ended is None
    return [event.data["number"] for event in news.events if event.kind == "trial"]


def test_only_a_commit_is_followed_by_a_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looks = event_feed._read, []

    def counted(*arguments: Any) -> Any:
        looks.append(arguments)
        return read(*arguments)

    async def heard(feed: EventFeed, job_id: str) -> tuple[int, list[int]]:
        """How many looks there were while nothing was committed, and the trials that came."""
        with feed.follow(job_id, 0) as follower:
            tried(store, job_id, 0, 1)
            numbers = list[int]()
            while 0 not in numbers:
                numbers += await _numbers(follower)
            await asyncio.sleep(2 * event_feed.POLL_S)
            before = len(looks)
            await asyncio.sleep(5 * event_feed.POLL_S)
            quiet = len(looks) - before
            tried(store, job_id, 1, 2 * BATCH + 10)
            while len(numbers) < 2 * BATCH + 11:
                numbers += await _numbers(follower)
            return quiet, numbers

    monkeypatch.setattr(event_feed, "_read", counted)
    feed = EventFeed(store, lambda: False)
    quiet, numbers = asyncio.run(heard(feed, submitted(store)))
    feed.close()
    assert quiet == 0
    assert numbers == list(range(2 * BATCH + 11))


def test_a_database_that_stalls_does_not_stall_the_loop(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, goes_on, went_on = threading.Event(), threading.Event(), list[bool]()

    def stall(_: Changes) -> None:
        stalled.set()
        went_on.append(goes_on.wait(3.0))

    async def ticks(feed: EventFeed, job_id: str) -> None:
        with feed.follow(job_id, 0):
            while not stalled.is_set():
                await asyncio.sleep(0.01)
            goes_on.set()  # which a loop that waits for the database does not come to
            while not went_on:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(Changes, "stamp", stall)
    feed = EventFeed(store, lambda: False)
    asyncio.run(ticks(feed, submitted(store)))
    feed.close()
    assert went_on[0]


def test_a_database_that_fails_revokes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_AGAIN_S", 0.0)
    answers = iter([OperationalError("SELECT 1", {}, Exception("gone")), Refusal(Kind.UNAUTHENTICATED, "x")])

    async def ask() -> None:
        raise next(answers)

    async def asked() -> list[bool]:
        admitted = access.Admitted(ask)
        return [await admitted.still() for _ in range(2)]

    assert asyncio.run(asked()) == [True, False]


def test_news_of_a_silent_job_come_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "SILENT_S", 0.05, raising=False)

    async def wait() -> News:
        return await asyncio.wait_for(Follower().news(), 5.0)

    assert asyncio.run(wait()) == News([], None)


@pytest.mark.parametrize("reason", ["stopping", "slow", None])
def test_a_stream_says_why_it_ended_also_where_its_key_opens_no_more(store: Store, reason: Any) -> None:
    class Ending(Follower):
        async def news(self) -> News:
            if reason:
                self.end(reason)
            return News([], None)

    async def closed() -> bool:
        return False

    async def told() -> list[Any]:
        events = SimpleNamespace(follow=lambda *_: contextlib.nullcontext(Ending()))
        service: Any = SimpleNamespace(store=store, events=events)
        admitted: Any = SimpleNamespace(still=closed)
        return [event async for event in job_routes.get_events(submitted(store), service, admitted)]

    *_, last = asyncio.run(told())
    assert last.data == {"detail": job_routes._ENDS[reason or "key"]}


def test_a_page_gets_the_trials_that_come_with_the_end_of_their_job(store: Store) -> None:
    job_id, data = submitted(store), {"number": 0, "median_us": 2.5, "outcome": "ok"}
    last = News([EventRecord(1, job_id, "trial", data, utc_now())], JobStatus.SUCCEEDED)

    async def told() -> list[Any]:
        follower = Follower()
        follower.tell(last)
        events = SimpleNamespace(follow=lambda *_: contextlib.nullcontext(follower))
        watch = SimpleNamespace(known=lambda _: None, now=lambda *_: SimpleNamespace(panel="so far"))
        service: Any = SimpleNamespace(store=store, events=events, watch=watch)
        admitted: Any = SimpleNamespace(still=opens)
        return [event async for event in pages.follow(job_id, service, admitted)]

    async def opens() -> bool:
        return True

    sent = [(event.event, event.raw_data) for event in asyncio.run(told()) if event.event]
    assert ("points", '[[0, 2.5, "ok"]]') in sent
    assert sent[-1] == ("done", "succeeded")
