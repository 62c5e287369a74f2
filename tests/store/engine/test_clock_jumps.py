"""Clocks that jump by five minutes, both ways, while jobs run: no lease that is renewed ends, none that is
not outlives its seconds, and each job has one winner."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select
from store_samples import HOST, HOST_CLASS, artifact, best, problem, request, trial

from tuner.store import entities, jobs, records
from tuner.store.database import JobTaken, Store
from tuner.store.models import BestConfigRow, JobRow
from tuner.store.queue import claims
from tuner.store.trials import JobRecorder

JUMPS_S = (-300.0, 0.0, 300.0)
JOBS, WORKERS, LEASE_S = 24, 4, 30.0
SLACK_S = 5.0


class Clock:
    """The wall clock of this process, as all modules of the store read it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.jump = timedelta(0)
        real = records.utc_now
        for name, module in list(sys.modules.items()):
            if name.startswith("tuner.store") and getattr(module, "utc_now", None) is real:
                patch.setattr(module, "utc_now", lambda: real() + self.jump)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def take_over(store: Store, watch: claims.LeaseWatch) -> list[str]:
    with store.begin() as session:
        return claims.requeue_lost(session, HOST_CLASS, watch)


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_lease_lasts_as_long_as_it_says(store: Store, clock: Clock, jump_s: float) -> None:
    before = time.monotonic()
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        job = claims.claim(session, HOST_CLASS, "on another machine", lease_s=0.5)
    after = time.monotonic()
    watch, clock.jump = claims.LeaseWatch(0.5, look_s=1.0), timedelta(seconds=jump_s)
    while not (found := take_over(store, watch)):
        assert time.monotonic() < after + 0.5 + SLACK_S
        time.sleep(0.05)
    assert job is not None
    assert found == [job.id]
    assert time.monotonic() >= before + 0.5


@pytest.mark.long
def test_each_job_runs_once_while_the_clock_jumps(store: Store, clock: Clock) -> None:
    with store.begin() as session:
        for m in range(1, JOBS + 1):
            jobs.submit(session, request(m=m), HOST)
    ended, lost = threading.Event(), Counter[str]()

    def jump() -> None:
        chosen = random.Random(1)
        while not ended.wait(0.02):
            clock.jump = timedelta(seconds=chosen.choice(JUMPS_S))

    def seek() -> None:
        watch = claims.LeaseWatch(LEASE_S, look_s=1.0)
        while not ended.wait(0.03):
            lost.update(take_over(store, watch))

    def work(worker: int) -> int:
        done = 0
        while True:
            with store.begin() as session:
                job = claims.claim(session, HOST_CLASS, f"machine {worker}", LEASE_S)
            if job is None:
                return done
            recorder = JobRecorder(store, job.id)
            for number in range(3):
                recorder.add_trial(trial(number), artifact())
                with store.begin() as session:
                    claims.renew(session, job.id, job.attempt, LEASE_S)
                time.sleep(0.005)
            recorder.set_best(best(job.request.problem), artifact())
            with store.begin() as session:
                jobs.finish(session, job.id, records.JobStatus.SUCCEEDED)
            done += 1

    with ThreadPoolExecutor(WORKERS + 2) as pool:
        helpers = [pool.submit(jump), pool.submit(seek)]
        try:
            done = list(pool.map(work, range(WORKERS)))
        finally:
            ended.set()
        for helper in helpers:
            helper.result()
    assert lost == {}
    assert sum(done) == JOBS
    with store.read() as session:
        assert set(session.scalars(select(JobRow.attempt))) == {1}
        assert len(session.scalars(select(BestConfigRow.problem_id)).all()) == JOBS


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_who_lost_a_job_writes_nothing_more(store: Store, clock: Clock, jump_s: float) -> None:
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        first = claims.claim(session, HOST_CLASS, "one machine", lease_s=0.2)
    assert first is not None
    late, watch = JobRecorder(store, first.id), claims.LeaseWatch(0.2, look_s=60.0)
    clock.jump = timedelta(seconds=jump_s)
    assert take_over(store, watch) == []
    time.sleep(0.3)
    assert take_over(store, watch) == [first.id]
    with store.begin() as session:
        second = claims.claim(session, HOST_CLASS, "another machine", lease_s=60.0)
    assert second is not None
    clock.jump = timedelta(0)
    winner = JobRecorder(store, second.id)
    winner.set_best(best(problem()), artifact())
    for write in (
        lambda: late.add_trial(trial(0), artifact()),
        lambda: late.set_best(best(problem(), speedup=9.0), artifact()),
    ):
        with pytest.raises(JobTaken):
            write()
    with store.read() as session:
        assert list(session.scalars(select(BestConfigRow.speedup))) == [1.25]
        assert len(entities.list_devices(session)) == 1


SHIFTED_CLOCK = """
CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT pg_catalog.clock_timestamp() + interval '{} seconds' $$
"""


class ServerClock:
    """The clock of a PostgreSQL server, as the statements of the store read it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.jump(0.0)
        with store.engine.begin() as connection:
            name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog')
        store.engine.dispose()  # connections have the path from their start

    def jump(self, seconds: float) -> None:
        with self._store.engine.begin() as connection:
            connection.exec_driver_sql(SHIFTED_CLOCK.format(seconds))


@pytest.mark.long
@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)  # SQLite has no server
def test_the_clock_of_a_database_server_ends_no_lease_and_keeps_none(store: Store) -> None:
    server, lease_s = ServerClock(store), 3.0
    watch = claims.LeaseWatch(lease_s, look_s=1.0)
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        job = claims.claim(session, HOST_CLASS, "on another machine", lease_s)
    assert job is not None

    def look() -> list[str]:
        time.sleep(0.05)
        return take_over(store, watch)

    for number in range(6):
        server.jump(JUMPS_S[number % 3])
        assert [look() for _ in range(3)] == [[]] * 3
        renewed = time.monotonic()
        with store.begin() as session:
            claims.renew(session, job.id, job.attempt, lease_s)
    server.jump(-300.0)
    while not (found := look()):
        assert time.monotonic() < renewed + lease_s + SLACK_S
    assert found == [job.id]
    assert time.monotonic() >= renewed + lease_s
    with store.begin() as session, pytest.raises(JobTaken):
        claims.renew(session, job.id, job.attempt, lease_s)


def test_a_lease_does_not_age_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that answers nobody takes no renewals either."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch, lease = claims.LeaseWatch(30.0, look_s=4.0), ("job", 1, None, None)

    def ended_after(seconds: float) -> bool:
        now[0] += seconds
        return watch.ended([lease]) == [lease]

    assert not any(ended_after(seconds) for seconds in (2.0, 600.0, 2.0, *[4.0] * 5))
    assert ended_after(4.0)
