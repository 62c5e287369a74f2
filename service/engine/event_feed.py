"""Events of jobs for all followers: one reader of the database for each process, however many followers there
are.

PostgreSQL notifies the reader of jobs with new events; while it cannot be heard, it is polled. A SQLite file
is polled for commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tilewright.lazy import LazyModule
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.engines.postgres_engine import ALIVE, EVENTS
from tuner.store.engines.sqlite_engine import Changes
from tuner.store.records import EventRecord

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = LazyModule("psycopg")  # an extra: SQLite does without

POLL_S = 0.2
QUIET_S = 5.0  # NOTE: a process that dies after a commit tells nobody of it
SILENT_S = 5.0  # until who follows a silent job is asked again whether the key still opens
BATCH = 200
_BURST_S = 0.01
_MOST_KEPT = 1000  # events that wait for one follower
_FAILED_S = 1.0
_RECONNECT_S = 1.0
End = Literal["stopping", "slow", "failed", "key"]
log = logging.getLogger("tilewright.events")


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """Events of a job, oldest first; ``status`` once it is final and these are the last of them."""

    events: list[EventRecord]
    status: JobStatus | None


class Follower:
    """What waits for one follower of a job; belongs to the event loop.

    Attributes:
        ended: why no more events come: the service stops or failed, the follower did not take its events, or
            its key no longer opens the service.
    """

    def __init__(self) -> None:
        self.ended: End | None = None
        self._events = list[EventRecord]()
        self._status: JobStatus | None = None
        self._has_news = asyncio.Event()

    async def news(self) -> News:
        """Wait for the next events; empty if the feed ended, or was silent for ``SILENT_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_S):
                await self._has_news.wait()
        self._has_news.clear()
        found, self._events = self._events, []
        return News(found, self._status)

    def tell(self, news: News) -> None:
        """Keep news until they are taken."""
        if self.ended is None:
            self._events += news.events
            self._status = news.status
        if len(self._events) > _MOST_KEPT:
            self.end("slow")
        self._has_news.set()

    def end(self, reason: End) -> None:
        """Let it wait no longer, and keep nothing for it."""
        self.ended, self._events = reason, []
        self._has_news.set()


class Listener:
    """Hears of new events while :meth:`run` runs; belongs to one event loop.

    Attributes:
        on: whether the database tells of new events now.
    """

    def __init__(self, engine: Engine) -> None:
        self.on = False
        self._engine = engine
        self._heard = set[str]()
        self._missed = True
        self._has_news = asyncio.Event()

    def take(self) -> set[str] | None:
        """The jobs notified since the last call; None if some notifications may have been missed."""
        found, self._heard = self._heard, set()
        missed, self._missed = self._missed or not self.on, False
        return None if missed else found

    async def wait(self, seconds: float) -> None:
        """Return once there is something to take, or after so many seconds."""
        try:
            await asyncio.wait_for(self._has_news.wait(), seconds)
        except TimeoutError:
            return
        self._has_news.clear()

    async def run(self) -> None:
        """Listen until cancelled; connects again where the connection drops."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError) as error:
                log.warning("events are polled until the database can be listened to: %s", error)
            except Exception:
                # NOTE: the boundary of the task: without it all events would be polled from then on.
                log.exception("events are polled until listening works again")
            finally:
                self.on = False
            await asyncio.sleep(_RECONNECT_S)

    async def _listen(self) -> None:
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        options = {**ALIVE, **options, "autocommit": True}
        connected = await psycopg.AsyncConnection.connect(*arguments, **options)
        async with connected as connection:
            await connection.execute(f"LISTEN {EVENTS}")
            self._missed = self.on = True
            self._has_news.set()
            async for notice in connection.notifies():
                self._heard.add(notice.payload)
                self._has_news.set()


class EventFeed:
    """Reads the events of all followed jobs while there are any; belongs to the event loop.

    Jobs may run in any process: what the database holds is what is told.
    """

    def __init__(self, store: Store, stopping: Callable[[], bool]) -> None:
        self._store, self._stopping = store, stopping
        self._followers = defaultdict[str, set[Follower]](set)
        self._last: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._changes = Changes(store.engine)
        self._listener = Listener(store.engine) if store.engine.dialect.name == "postgresql" else None
        self._seen: int | None = None  # the stamp of the database that the last look began with
        self._look_at = 0.0  # when all jobs are looked at, heard of or not, by ``time.monotonic()``

    @contextlib.contextmanager
    def follow(self, job_id: str, last_id: int) -> Iterator[Follower]:
        """Follow the events of a job after ``last_id``, which must not be above the id of its newest event; 0
        for all events. If others follow the job already, events before this call may be left out: read them
        from the database in the block."""
        follower = Follower()
        self._followers[job_id].add(follower)
        self._look_again()
        self._last.setdefault(job_id, last_id)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield follower
        finally:
            self._followers[job_id].discard(follower)
            if not self._followers[job_id]:
                del self._followers[job_id], self._last[job_id]

    def close(self) -> None:
        """Let go of the database."""
        self._changes.close()

    async def _run(self) -> None:
        listening = asyncio.create_task(self._listener.run()) if self._listener else None
        try:
            await self._read_on()
        except Exception:
            log.exception("the events of jobs cannot be read")
            self._end_all("failed")
        finally:
            if listening:
                listening.cancel()
                await asyncio.wait([listening])
            if any(one.ended is None for each in self._followers.values() for one in each):
                self._task = asyncio.create_task(self._run())  # who came meanwhile

    async def _read_on(self) -> None:
        while self._followers:
            if self._stopping():
                self._end_all("stopping")
                return
            try:
                named = await self._due()
                found = await run_in_threadpool(_read, self._store, named) if named else {}
            except SQLAlchemyError as error:
                log.warning("followers of jobs wait: the database: %s", error)
                self._look_again()
                await asyncio.sleep(_FAILED_S)
                continue
            for job_id, news in found.items():
                self._tell(job_id, news)
                if len(news.events) == BATCH:
                    self._look_again()  # more wait already
            await self._pause()

    async def _due(self) -> dict[str, int]:
        """The jobs that may have new events, each with the last event that followers were told."""
        if self._listener is None:
            stamp = await run_in_threadpool(self._changes.stamp)
            nothing = stamp is not None and stamp == self._seen
            self._seen = stamp
            return {} if nothing else dict(self._last)
        heard, now = self._listener.take(), time.monotonic()
        if heard is None or now >= self._look_at:
            self._look_at = now + QUIET_S
            return dict(self._last)
        return {job_id: self._last[job_id] for job_id in heard & self._last.keys()}

    async def _pause(self) -> None:
        if self._listener is None or not self._listener.on:
            await asyncio.sleep(POLL_S)
        else:
            await asyncio.sleep(_BURST_S)  # one look for events that come together
            await self._listener.wait(POLL_S)

    def _look_again(self) -> None:
        self._seen, self._look_at = None, 0.0

    def _tell(self, job_id: str, news: News) -> None:
        if job_id in self._last and news.events:
            self._last[job_id] = max(self._last[job_id], news.events[-1].id)
        for follower in self._followers.get(job_id, ()):
            follower.tell(news)

    def _end_all(self, reason: End) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.end(reason)


def _read(store: Store, last: Mapping[str, int]) -> dict[str, News]:
    """The new events of each job after the given one; jobs without new events are left out."""
    with store.read() as session:
        # NOTE: status first, events second: a final status means that all events are there.
        statuses = jobs.statuses(session, list(last))
        newest = jobs.newest_events(session, list(last))
        fresh = {job_id: after for job_id, after in last.items() if newest.get(job_id, 0) > after}
        events = {job_id: jobs.events_after(session, job_id, after, BATCH) for job_id, after in fresh.items()}
    found = dict[str, News]()
    for job_id in last:
        mine, status = events.get(job_id, []), statuses.get(job_id, JobStatus.CANCELLED)
        final = status if status.final and len(mine) < BATCH else None
        if mine or final:
            found[job_id] = News(mine, final)
    return found
