"""Followers of jobs: the database is read after commits, and every event arrives, however many at once."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_lab import FakeBench
from sqlalchemy.exc import OperationalError
from store_samples import HOST, request

from service.engine import device_queue, event_feed
from service.engine.engine import LocalEngine
from service.engine.event_feed import BATCH, EventFeed, Follower, News
from service.errors import Kind, Refusal
from service.http import access
from service.http.pages import now as pages
from service.http.routes import jobs as job_routes
from service.settings import Settings
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.engines.sqlite_engine import Changes
from tuner.store.records import EventRecord, utc_now
from tuner.workers.recovery import DeviceSetAside

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


async def _opens() -> bool:
    return True


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
        engine = SimpleNamespace(why_waiting=lambda _: None)
        service: Any = SimpleNamespace(store=store, events=events, engine=engine)
        admitted: Any = SimpleNamespace(still=closed)
        job = job_routes._existing_job(submitted(store), service)
        return [event async for event in job_routes.get_events(job, service, admitted)]

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
        admitted: Any = SimpleNamespace(still=_opens)
        return [event async for event in pages.follow(job_id, service, admitted)]

    sent = [(event.event, event.raw_data) for event in asyncio.run(told()) if event.event]
    assert ("points", '[[0, 2.5, "ok"]]') in sent
    assert sent[-1] == ("done", "succeeded")


class Device(FakeBench):
    """A device that is set aside while ``aside`` is a reason."""

    aside = ""

    def come_back(self) -> None:
        if self.aside:
            raise DeviceSetAside(self.aside)


class Tuning:
    """Ends as the test says: with None, which finds no winner, or with an error."""

    def __init__(self) -> None:
        self.ends = queue.SimpleQueue[Exception | None]()

    def __call__(self, *_: object) -> None:
        if error := self.ends.get(timeout=PATIENCE_S):
            raise error


@pytest.fixture
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "SILENT_S", 0.05)
    for pause in ("_ASIDE_S", "_POLL_S"):
        monkeypatch.setattr(device_queue, pause, 0.05)


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Tuning:
    made = Tuning()
    monkeypatch.setattr(device_queue, "run_job", made)
    return made


@pytest.fixture
def engine(
    store: Store, tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalEngine]:
    monkeypatch.setattr(device_queue, "Bench", Device)
    settings = Settings(
        devices=("host",), cache_dir=tmp_path, lock_dir=tmp_path, compile_processes=1, stop_s=0.2
    )
    made = LocalEngine(store, settings)
    made.start()
    yield made
    tuning.ends.put(None)
    made.stop()


@contextlib.asynccontextmanager
async def following(store: Store, engine: Any, job_id: str, last_id: int = 0) -> Any:
    """The events of a job that ``GET /jobs/{job_id}/events`` sends, as (kind, data, id)."""
    feed = EventFeed(store, lambda: False)
    service: Any = SimpleNamespace(store=store, events=feed, engine=engine)
    admitted: Any = SimpleNamespace(still=_opens)
    job = job_routes._existing_job(job_id, service)
    events = job_routes.get_events(job, service, admitted, str(last_id))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield ((event.event, event.data, event.id) async for event in events if event.event)
    finally:
        await events.aclose()
        feed.close()


@pytest.mark.usefixtures("_looks_often")
def test_a_device_that_is_set_aside_under_a_followed_job_is_told(
    store: Store, engine: LocalEngine, tuning: Tuning
) -> None:
    device: Any = engine.queues["host"].bench
    job_id, aside = submitted(store), "4096 MiB of its memory are in use by no process"
    engine.wake()

    async def follow() -> list[Any]:
        told = list[Any]()
        async with following(store, engine, job_id) as events:
            async for kind, data, _ in events:
                told.append(data["waiting"] if kind == "waiting" else data["status"])
                if told[-1] == "running" and told.count("running") == 1:
                    device.aside = aside
                    tuning.ends.put(DeviceSetAside(aside))
                elif told[-1] == f"set aside: {aside}":
                    device.aside = ""
                elif told[-1] is None and not device.aside and "queued" in told[1:]:
                    tuning.ends.put(None)
        return told

    told = asyncio.run(follow())
    since = told[told.index(f"set aside: {aside}") :]
    assert [one for one in since if one != "running"] == [since[0], None, "failed", "failed"]


class Scripted:
    """An engine that gives these reasons, one at each look; then its job ends."""

    def __init__(self, store: Store, *reasons: str | None) -> None:
        self.store, self.reasons, self.seen = store, list(reasons), list[JobStatus]()

    def why_waiting(self, job: Any) -> str | None:
        self.seen.append(job.status)
        if len(self.reasons) == 1 and not job.status.final:
            with self.store.begin() as session:
                jobs.finish(session, job.id, JobStatus.FAILED, "no winner")
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]


async def _all(store: Store, engine: Scripted, job_id: str, last_id: int = 0) -> list[Any]:
    async with following(store, engine, job_id, last_id) as events:
        return [event async for event in events]


@pytest.mark.usefixtures("_looks_often")
def test_a_count_in_a_reason_is_no_change_and_no_reason_has_an_id(store: Store) -> None:
    counted = [f"used by 2 others; {left:g} s at most" for left in (10, 9.5, 9)]
    job_id = submitted(store)
    engine = Scripted(store, None, None, *counted, "its disk is full", "its disk is full", None)
    found = asyncio.run(_all(store, engine, job_id))
    waits = [(data["waiting"], given) for kind, data, given in found if kind == "waiting"]
    assert waits == [(None, None), (counted[0], None), ("its disk is full", None), (None, None)]
    assert [kind for kind, *_ in found][-2:] == ["status", "done"]
    assert set(engine.seen[:-1]) == {JobStatus.QUEUED}


@pytest.mark.usefixtures("_looks_often")
def test_who_resumes_is_told_the_reason_of_now_and_of_an_ended_job_none(store: Store) -> None:
    job_id = submitted(store)
    with store.read() as session:
        newest = jobs.newest_events(session, [job_id])[job_id]
    full = "its disk is full"
    first, *rest = asyncio.run(_all(store, Scripted(store, full, full), job_id, newest))
    assert first == ("waiting", {"waiting": full}, None)
    assert [kind for kind, *_ in rest] == ["status", "done"]
    ended = asyncio.run(_all(store, Scripted(store, full), job_id))
    assert [kind for kind, *_ in ended] == ["status", "status", "done"]
