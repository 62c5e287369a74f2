"""Followers of jobs: the database is read after commits, and every event arrives, however many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_samples import HOST, request

from service.engine import event_feed
from service.engine.event_feed import BATCH, EventFeed, Follower
from tuner.store import jobs
from tuner.store.database import Changes, Store

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
