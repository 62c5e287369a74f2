"""Many processes at one database: writers beside readers, and claimers at one queue.

    make soak

32 writers add a trial every 0.1 s each while 200 lookups a second are asked of a service on the same SQLite
file: no request may fail, and no writer may be told that the database is locked. Then 16 claimers take, renew
and end queued jobs, on SQLite and, where it is installed, on PostgreSQL: each job is ended once, by the only
one that claimed it. Then lookups are asked of a service that compiles for a job of 200 trials. What was found
so far is written after each part.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
from api_server import finish, start
from postgres_server import find_binaries, running
from sqlalchemy import func, select
from store_samples import HOST, HOST_CLASS, artifact, best, problem, request, trial

from benchmarks.common.results import machine_facts
from tilewright import Client, GemmProblem
from tilewright.schema.job import JobStatus
from tuner.store import best as winners
from tuner.store import entities, jobs
from tuner.store.database import JobTaken, Store
from tuner.store.models import JobRow, TrialRow
from tuner.store.queue import claims
from tuner.store.trials import JobRecorder

WRITERS, READS_A_SECOND, CLAIMERS = 32, 200, 16
TRIALS = 200  # of the job that is compiled for
PAUSE_S = 0.1
_spawn = multiprocessing.get_context("spawn")
_ready: Any = None  # NOTE: else the start of 33 interpreters on a few cores is what the first seconds measure


def _wait_for_all(ready: Any) -> None:
    global _ready
    _ready = ready


@contextlib.contextmanager
def processes(count: int) -> Iterator[Any]:
    """A pool of processes whose work begins together."""
    with _spawn.Pool(count, _wait_for_all, (_spawn.Barrier(count),)) as pool:
        yield pool


def write(url: str, number: int, seconds: float) -> dict[str, Any]:
    """Record trials of a job of its own; gives how many, and how long each took."""
    store, costs, errors = Store.open(url), list[float](), collections.Counter[str]()
    with store.begin() as session:
        jobs.submit(session, request(m=1000 + number), HOST)
        job = claims.claim(session, HOST_CLASS, f"writer {number}", 3600.0)
    assert job is not None
    _ready.wait()
    recorder, until, count = JobRecorder(store, job.id), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            recorder.add_trial(trial(count), artifact())
            count += 1
        except Exception as error:  # NOTE: what a writer is told is what this counts
            errors[f"{type(error).__name__}: {str(error)[:80]}"] += 1
        costs.append(time.monotonic() - began)
        time.sleep(PAUSE_S)
    store.close()
    return {"count": count, "costs": costs, "errors": dict(errors)}


def read(url: str, seconds: float) -> dict[str, Any]:
    """Lookups at their times of a steady rate; gives what each was answered and how long it took."""
    of = {"device_class": HOST_CLASS, "n": 64, "k": 64, "dtype": "float32", "layout": "nn"}
    asked = [urlencode(of | {"m": m}) for m in range(64, 72)]
    codes, costs = collections.Counter[int](), list[float]()
    lock, threads = threading.Lock(), 8
    _ready.wait()
    began = time.monotonic()

    def ask(first: int) -> None:
        with httpx2.Client(base_url=url, timeout=60.0) as http:
            for number in range(first, int(seconds * READS_A_SECOND), threads):
                due = began + number / READS_A_SECOND
                time.sleep(max(0.0, due - time.monotonic()))
                answer = http.get(f"/best-config?{asked[number % len(asked)]}")
                with lock:
                    codes[answer.status_code] += 1
                    costs.append(time.monotonic() - due)

    each = [threading.Thread(target=ask, args=(first,)) for first in range(threads)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    return {"codes": dict(codes), "costs": costs}


def spread(costs: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(costs)
    places = {"p50": len(costs) // 2, "p99": int(0.99 * len(costs)), "max": len(costs) - 1}
    return {f"{name}_ms": round(1e3 * ordered[place], 1) for name, place in places.items()}


def filled(folder: Path) -> tuple[str, Store]:
    """The database of a service with the winners that are looked up."""
    url = f"sqlite:///{folder / 'tilewright.db'}"
    store = Store.open(url)
    store.migrate()
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for m in range(64, 72):
            winners.put(session, best(problem(m)))
    return url, store


def compilations_and_readers(folder: Path, seconds: float, trials: int, pool: Any) -> dict[str, Any]:
    """What the callers of a service were told by a pool of one process while it compiles on all cores."""
    filled(folder)[1].close()
    cores = os.cpu_count() or 1
    server = start(folder, retune_stale=False, compile_processes=cores, cache_dir=folder / "cache")
    try:
        with Client(server.url, timeout=60.0, offline=True) as client:
            of = GemmProblem(256, 256, 256, "float32", "nn")
            job = client.tune(of, wait=False, max_trials=trials, sampler="random")
            read_ = pool.apply(read, (server.url, seconds))
            client.cancel(job.id)
    finally:
        finish(server)
    assert set(read_["codes"]) == {200}, read_["codes"]
    compiled = sum(1 for _ in (folder / "cache").glob("??/*"))
    return {
        "compile_processes": cores,
        "seconds": seconds,
        "compiled": compiled,
        "lookups": sum(read_["codes"].values()),
        "lookup": spread(read_["costs"]),
    }


def writers_and_readers(folder: Path, seconds: float, pool: Any, writers: int) -> dict[str, Any]:
    """What writers and a service's callers were told by a pool of ``writers`` processes and one more."""
    url, store = filled(folder)
    server = start(folder, retune_stale=False)
    try:
        reading = pool.apply_async(read, (server.url, seconds))
        writing = [pool.apply_async(write, (url, number, seconds)) for number in range(writers)]
        read_, written = reading.get(), [one.get() for one in writing]
    finally:
        finish(server)
    with store.read() as session:
        kept = session.scalars(select(func.count()).select_from(TrialRow)).one()
    store.close()
    acknowledged = sum(one["count"] for one in written)
    errors = sum((collections.Counter(one["errors"]) for one in written), collections.Counter[str]())
    assert kept == acknowledged, f"{kept} trials are kept, {acknowledged} were acknowledged"
    assert errors == {}, errors
    assert set(read_["codes"]) == {200}, read_["codes"]
    return {
        "writers": writers,
        "seconds": seconds,
        "trials": kept,
        "lookups": sum(read_["codes"].values()),
        "errors": 0,
        "write": spread([cost for one in written for cost in one["costs"]]),
        "lookup": spread(read_["costs"]),
    }


def claim(url: str, number: int) -> list[str]:
    """Take, renew and end jobs until none is queued; gives their ids."""
    store, done = Store.open(url), list[str]()
    _ready.wait()
    while True:
        with store.begin() as session:
            job = claims.claim(session, HOST_CLASS, f"claimer {number}")
        if job is None:
            store.close()
            return done
        with store.begin() as session:
            claims.renew(session, job.id, job.attempt)
            jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        done.append(job.id)


def claim_all(url: str, count: int, pool: Any, claimers: int) -> dict[str, Any]:
    """Each job of a queue is done once by a pool of processes; a late write of another claim is refused."""
    store = Store.open(url)
    store.migrate()
    for start_ in range(0, count, 500):
        with store.begin() as session:
            for number in range(start_, min(count, start_ + 500)):
                jobs.submit(session, request(seed=number), HOST)
    began = time.monotonic()
    found = pool.starmap(claim, [(url, number) for number in range(claimers)], chunksize=1)
    done = [job_id for ids in found for job_id in ids]
    took = time.monotonic() - began
    with store.read() as session:
        attempts = set(session.scalars(select(JobRow.attempt)))
    assert len(done) == len(set(done)) == count, "a job was done twice, or not at all"
    assert attempts == {1}
    refused = 0
    for job_id in done[:100]:
        try:
            with store.begin() as session:
                claims.renew(session, job_id, 1)
        except JobTaken:
            refused += 1
    assert refused == min(100, count), "a late write was taken"
    store.close()
    return {
        "claimers": claimers,
        "jobs": count,
        "seconds": round(took, 1),
        "done_twice": 0,
        "late_writes_taken": 0,
    }


@contextlib.contextmanager
def postgresql() -> Iterator[str | None]:
    """A database of a new server; None if PostgreSQL is not installed."""
    binaries = find_binaries()
    if binaries is None:
        yield None
        return
    with running(binaries) as server:
        yield server.url("postgres")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=600.0, help="of the writers; 0: none")
    parser.add_argument("--jobs", type=int, default=10_000, help="for the claimers; 0: none")
    parser.add_argument("--compiling", type=float, default=60.0, help="seconds of it; 0: none")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine_facts(),
    }

    def tell(name: str, part: dict[str, Any]) -> None:
        found[name] = part
        print(json.dumps({name: part}), flush=True)  # noqa: T201
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")

    if arguments.jobs:
        with tempfile.TemporaryDirectory() as folder, processes(CLAIMERS) as pool:
            url = f"sqlite:///{folder}/claims.db"
            tell("claims on SQLite", claim_all(url, arguments.jobs, pool, CLAIMERS))
            with postgresql() as other:
                if other:
                    tell("claims on PostgreSQL", claim_all(other, arguments.jobs, pool, CLAIMERS))
    if arguments.compiling:
        with tempfile.TemporaryDirectory() as folder, processes(1) as pool:
            found_ = compilations_and_readers(Path(folder), arguments.compiling, TRIALS, pool)
            tell("lookups beside compilations", found_)
    if arguments.seconds:
        with tempfile.TemporaryDirectory() as folder, processes(WRITERS + 1) as pool:
            found_ = writers_and_readers(Path(folder), arguments.seconds, pool, WRITERS)
            tell("writers beside lookups", found_)


if __name__ == "__main__":
    main()
