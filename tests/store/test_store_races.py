"""Several at once: the database decides, nothing is done twice or lost, and commits of others are noticed."""

from __future__ import annotations

import collections
import io
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from databases import on_both
from sqlalchemy import func, select, text, true
from sqlalchemy.exc import OperationalError
from store_samples import ENTERED, HOST, HOST_CLASS, best, problem, request

from service.results import importing
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.wire import Format
from tuner.store import entities, exchange, jobs, sets
from tuner.store.access import keys
from tuner.store.database import Store
from tuner.store.engines import sqlite_engine
from tuner.store.engines.sqlite_engine import Changes
from tuner.store.exchange import EndedJob, Line, Winner
from tuner.store.models import JobRow
from tuner.store.queue import claims

WORKERS = 6
T = TypeVar("T")


def at_once(work: Callable[[int], T]) -> list[T]:
    """Run ``work(0) .. work(WORKERS - 1)`` in threads that start together."""
    gate = threading.Barrier(WORKERS)

    def run(index: int) -> T:
        gate.wait()
        return work(index)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(run, range(WORKERS)))


def submit_in(store: Store, m: int) -> tuple[str, bool]:
    with store.begin() as session:
        job, created = jobs.submit(session, request(m), HOST)
        return job.id, created


@on_both
def test_identical_submissions_make_one_job(store: Store) -> None:
    for m in range(1, 6):
        results = at_once(lambda _, m=m: submit_in(store, m))
        assert len({job_id for job_id, _ in results}) == 1
        assert sum(created for _, created in results) == 1


@on_both
def test_the_work_of_one_key_is_done_once(store: Store) -> None:
    done: list[int] = []

    def ask(index: int, number: int) -> int:
        with store.begin() as session:
            answer = keys.once(session, f"key {number}", "digest", lambda: {"by": index})
            done.extend([number] * (answer == {"by": index}))
        return answer["by"]

    for number in range(5):
        answers = at_once(lambda index, number=number: ask(index, number))
        assert len(set(answers)) == 1
    assert done == list(range(5))


@on_both
def test_each_job_is_claimed_once(store: Store) -> None:
    submitted = {submit_in(store, m)[0] for m in range(1, 31)}

    def claim_all(index: int) -> list[str]:
        mine = []
        while True:
            with store.begin() as session:
                job = claims.claim(session, HOST_CLASS, f"worker {index}")
            if job is None:
                return mine
            mine.append(job.id)

    claimed = [job_id for mine in at_once(claim_all) for job_id in mine]
    assert len(claimed) == 30
    assert set(claimed) == submitted


@on_both
def test_a_follower_sees_every_event_once(store: Store) -> None:
    """Ids become visible in order: a reader that goes on from the last id it saw misses nothing."""
    job_id, _ = submit_in(store, 1)
    done = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        last = 0
        while True:
            finished = done.is_set()
            with store.read() as session:
                new = [event.id for event in jobs.events_after(session, job_id, last)]
            seen.extend(new)
            last = seen[-1] if seen else last
            if finished and not new:
                return

    def write(index: int) -> None:
        for number in range(15):
            with store.begin() as session:
                jobs.append_event(session, job_id, "note", {"by": index, "number": number})

    follower = threading.Thread(target=follow)
    follower.start()
    at_once(write)
    done.set()
    follower.join()
    with store.read() as session:
        everything = [event.id for event in jobs.events_after(session, job_id)]
    assert len(everything) == 1 + 15 * WORKERS
    assert seen == everything


EARLIER, LATER = problem(8), problem(9)  # as all transactions keep problems that are new


def submit_ladder(store: Store) -> None:
    with store.begin() as session:
        jobs.submit(session, TuneRequest(LATER, (8, 9)), HOST)


def import_ladder(store: Store) -> None:
    import_lines(
        store, EndedJob("a" * 32, TuneRequest(LATER, (8, 9)), HOST, JobStatus.CANCELLED, ENTERED, ENTERED)
    )


def import_winners(store: Store) -> None:
    import_lines(store, Winner(best(LATER), ENTERED), Winner(best(EARLIER), ENTERED))


def import_lines(store: Store, *lines: Line) -> None:
    content = b"".join(json.dumps(exchange.to_plain(one)).encode() + b"\n" for one in lines)
    importing.merge(store, io.BytesIO(content), Format.NDJSON, None, "me")


@pytest.mark.long
@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)  # SQLite has one writer
@pytest.mark.parametrize("step", [submit_ladder, import_ladder, import_winners])
def test_no_two_wait_for_each_other_to_keep_new_problems(store: Store, step: Callable[[Store], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as session:
            entities.ensure_problem(session, EARLIER)
            waiting = pool.submit(step, store)
            while not session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not waiting.done()
            entities.ensure_problem(session, LATER)
        waiting.result(20.0)


PROCESSES, JOBS = 4, 100
CLAIM_ALL = """
import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from tuner.store.queue.owners import new_owner
from tuner.store import jobs
from tuner.store.queue import claims
from tuner.store.database import Store
from tuner.store.records import JobStatus

store = Store.open(sys.argv[1])


def claim_all(_):
    owner, mine = new_owner(), []
    for turn in itertools.count():
        with store.begin() as session:
            if turn % 10 == 0:
                claims.requeue_lost(session, sys.argv[2], claims.LeaseWatch(30.0, 4.0))
            job = claims.claim(session, sys.argv[2], owner)
        if job is None:
            return mine
        with store.begin() as session:
            claims.hold(session, job.id, job.attempt)
            jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        mine.append(job.id)
        time.sleep(0.01)  # NOTE: SQLite is not fair: without it a few take all jobs on a busy machine


with ThreadPoolExecutor(4) as pool:
    print("ready", flush=True)
    sys.stdin.readline()
    for mine in pool.map(claim_all, range(4)):
        print(*mine)
"""


@pytest.mark.long
def test_each_job_is_run_exactly_once(store: Store, url: str) -> None:
    """As ``make soak`` does with 10,000 jobs."""
    with store.begin() as session:
        submitted = {jobs.submit(session, request(m), HOST)[0].id for m in range(1, JOBS + 1)}
    runs = [mine.split() for output in claim_everything(url) for mine in output.splitlines()]
    assert len(runs) == 4 * PROCESSES
    counts = collections.Counter(job_id for mine in runs for job_id in mine)
    assert set(counts) == submitted
    assert set(counts.values()) == {1}
    assert sum(map(bool, runs)) > PROCESSES, "a few claimers took them all: hardly anything was contended"
    with store.read() as session:
        ended = select(JobRow.status, JobRow.attempt, func.count()).group_by(JobRow.status, JobRow.attempt)
        assert session.execute(ended).all() == [(JobStatus.SUCCEEDED, 1, JOBS)]


def claim_everything(url: str) -> list[str]:
    """What each process printed, all started at the same moment."""
    command = [sys.executable, "-W", "error", "-c", CLAIM_ALL, url, HOST_CLASS]
    pipe = subprocess.PIPE
    claimers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(PROCESSES)]
    for claimer in claimers:
        assert claimer.stdout is not None
        assert claimer.stdout.readline() == "ready\n"
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    outputs = [claimer.communicate(timeout=240)[0] for claimer in claimers]
    assert [claimer.returncode for claimer in claimers] == [0] * PROCESSES
    return outputs


def test_a_connection_in_use_when_the_store_closes_is_closed_after_its_transaction(url: str) -> None:
    store = Store.open(url)
    with store.begin() as session:
        used: Any = session.connection().connection.dbapi_connection
        store.close()
        sets.changed(session, HOST_CLASS, true())
    with store.read() as session:
        assert sets.served(session, HOST_CLASS).revision == 1
        later: Any = session.connection().connection.dbapi_connection
    for connection in (used, later):
        with pytest.raises((psycopg.OperationalError, sqlite3.ProgrammingError), match="closed"):
            connection.execute("SELECT 1")


def commit(store: Store) -> None:
    with store.begin() as session:
        sets.changed(session, HOST_CLASS, true())


@on_both
def test_the_stamp_changes_with_commits_and_only_then(store: Store) -> None:
    changes = Changes(store.engine)
    try:
        before = changes.stamp()
        if store.engine.dialect.name != "sqlite":
            assert before is None
            return
        with store.read() as session:
            sets.served(session, HOST_CLASS)
        assert changes.stamp() == before
        stamps = {before}
        for _ in range(5):
            commit(store)
            stamps.add(changes.stamp())
            assert changes.stamp() in stamps
        assert len(stamps) == 6
    finally:
        changes.close()


def test_commits_of_another_process_change_it_and_rollbacks_do_not(store: Store, url: str) -> None:
    changes = Changes(store.engine)
    try:
        before = changes.stamp()
        try:
            with store.begin() as session:
                sets.changed(session, HOST_CLASS, true())
                raise KeyError
        except KeyError:
            assert changes.stamp() == before
        program = f"""
from sqlalchemy import true
from tuner.store import sets
from tuner.store.database import Store
store = Store.open({url!r})
with store.begin() as session:
    sets.changed(session, "there", true())
store.close()
"""
        subprocess.run([sys.executable, "-c", program], check=True)
        assert (changes.stamp() == before) is (store.engine.dialect.name != "sqlite")
    finally:
        changes.close()


@on_both
def test_a_connection_that_breaks_costs_one_stamp_and_repeats_none(store: Store) -> None:
    changes = Changes(store.engine)
    try:
        if store.engine.dialect.name != "sqlite":
            return
        before = changes.stamp()
        changes._connection.driver_connection.close()
        assert changes.stamp() is None, "what was kept is not given again"
        assert changes.stamp() not in (None, before)
        assert changes.stamp() == changes.stamp()
    finally:
        changes.close()


def test_a_file_that_is_removed_while_a_connection_opens_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, away = tmp_path / "a % database?.db", tmp_path / "away.db"
    store = Store.open(f"sqlite:///{file}".replace("%", "%25").replace("?", "%3F"))
    store.migrate()
    identity = sqlite_engine._identity

    def removed_after_the_look(path: Path) -> tuple[int, int] | None:
        found = identity(path)
        path.rename(away)
        return found

    store.engine.dispose()  # so that the next transaction opens a connection
    monkeypatch.setattr(sqlite_engine, "_identity", removed_after_the_look)
    with pytest.raises(OperationalError, match="unable to open"):
        submit_in(store, 1)
    monkeypatch.undo()
    assert not file.exists()
    away.rename(file)
    assert submit_in(store, 1)[1]
    store.close()


def test_all_connections_open_the_same_file(tmp_path: Path) -> None:
    """With symlinks and options in the URL too: SQLAlchemy resolves ``..`` before the system does."""
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "other" / "deep")
    store = Store.open(f"sqlite:///{tmp_path}/link/../x.db?uri=true&timeout=5")
    store.migrate()
    with store.read() as first, store.read() as second:
        query = text("SELECT file FROM pragma_database_list WHERE name = 'main'")
        files = {one.scalars(query).one() for one in (first, second)}
    assert files == {str(tmp_path / "x.db")}
    assert not (tmp_path / "other" / "x.db").exists()
    store.close()
