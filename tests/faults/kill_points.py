"""``kill -9`` of the server and of its workers at random moments of tuning, and what is left after each.

    PYTHONPATH=.:tests/support/servers python tests/faults/kill_points.py --points 200 --out kill-points.json

At half of the points the server is killed, at half its device's process; compilers come on top. After each
the database, SQLite or with ``--postgresql`` a PostgreSQL of its own, must be whole and hold every trial that
was committed before, and the job must go on within its lease and five seconds; each job must come to its end,
with no config measured twice. What was found so far is written after every tenth kill; a file that is there
already is gone on with, a slice a run. ``--processes`` share the points, each with a service and a database
of its own: one for two cores, since the job of each takes them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import functools
import json
import multiprocessing
import operator
import os
import random
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql
from api_server import Server, announced_url, children, environment, finish
from forked_server import ForkedProcess
from postgres_server import find_binaries, running
from sqlalchemy import Connection as Database
from sqlalchemy import create_engine, text

from benchmarks.common.results import machine_facts
from tilewright import Client, GemmProblem

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
TRIALS = 150  # of a job: many, since races take long
RESUME_S = 30.0 + 5.0  # the lease, and what a server takes to see that it ended
PATIENCE_S = 120.0
Trials = list[tuple[Any, ...]]
_spawn = multiprocessing.get_context("spawn")
MEAN_S = 0.1  # from a job's going on to the next kill
MODULES = {"device worker": b"tuner.workers.device_worker", "compiler": b"tuner.workers.compile_worker"}
POINTS_A_COMPILER = 10


def fork(folder: Path, **settings: object) -> Server:
    """Start a server with the database and the log of a folder, which measures as long as any."""
    log = folder / "log"
    process = ForkedProcess(["serve", "--json"], environment(folder, **settings), log, quick=False)
    return Server(process, announced_url(process.stdout, log), folder)


@dataclasses.dataclass
class Counts:
    """What was counted; ``resume_s`` is from each kill to the next measured trial or the job's end."""

    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    jobs: list[str] = dataclasses.field(default_factory=list)
    resume_s: dict[str, list[float]] = dataclasses.field(
        default_factory=functools.partial(collections.defaultdict, list)
    )
    trials: int = 0

    def __add__(self, other: Counts) -> Counts:
        resumed: dict[str, list[float]] = collections.defaultdict(list)
        for counts in (self, other):
            for victim, seconds in counts.resume_s.items():
                resumed[victim] += seconds
        return Counts(self.kills + other.kills, self.jobs + other.jobs, resumed, self.trials + other.trials)


class Killing:
    """One database, one server after another, one job after another."""

    def __init__(self, folder: Path, seed: int, trials: int = TRIALS, database_url: str = "") -> None:
        self.counts = Counts()
        self._folder = folder
        self._trials = trials
        self._random = random.Random(seed)
        self._url = database_url or f"sqlite:///{folder / 'tilewright.db'}"
        self._engine = create_engine(self._url)
        self._server = fork(folder, database_url=self._url)

    def run(
        self, points: int, seconds: float = float("inf"), told: Callable[[Counts], None] = lambda _: None
    ) -> Counts:
        """Kill so often, or for so long, then let the last job come to its end; every tenth kill is told."""
        victims = ["server", "device worker"] * (points // 2) + ["compiler"] * (points // POINTS_A_COMPILER)
        self._random.shuffle(victims)
        until = time.monotonic() + seconds
        try:
            for victim in victims:
                if time.monotonic() > until:
                    break
                self._ensure_job()
                time.sleep(self._random.expovariate(1 / MEAN_S))
                self._kill(victim)
                if self.counts.kills.total() % 10 == 0:
                    told(self.counts)
            self._wait(lambda status, _: status == "succeeded")
            self._check_database()
            return self.counts
        finally:
            finish(self._server)
            self._engine.dispose()

    def _ensure_job(self) -> None:
        jobs = self.counts.jobs
        if not jobs or self._job()[0] == "succeeded":
            with Client(self._server.url, timeout=60.0, offline=True) as client:
                # NOTE: a random search tries the same configs in each job, so they are compiled once.
                job = client.tune(PROBLEM, wait=False, max_trials=self._trials, sampler="random")
                jobs.append(job.id)

    def _kill(self, victim: str) -> None:
        _, before = self._job()
        running = children(self._server.process.pid, MODULES[victim]) if victim in MODULES else []
        if running:
            os.kill(running[0], signal.SIGKILL)
        else:
            victim = "server"
            assert self._server.stop(signal.SIGKILL) == -signal.SIGKILL, "it was alive"
            finish(self._server)
        killed = time.monotonic()
        self._check_database()
        _, kept = self._job()
        assert kept[: len(before)] == before, "a committed trial is lost or changed"
        if victim == "server":
            self._server = fork(self._folder, database_url=self._url)
        self._wait(lambda status, trials: status == "succeeded" or any(map(_measured, trials[len(kept) :])))
        took = time.monotonic() - killed
        assert took < RESUME_S, f"the job went on after {took:.1f} s"
        self.counts.kills[victim] += 1
        self.counts.resume_s[victim].append(took)

    def _wait(self, reached: Callable[[str, Trials], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not reached(*self._job()):
            assert time.monotonic() < end, "the job did not go on"
            time.sleep(0.02)

    def _job(self) -> tuple[str, Trials]:
        """Status and trials of the last job as they are committed."""
        job = {"id": self.counts.jobs[-1]}
        with self._database() as connection:
            [(status, error)] = connection.execute(text("SELECT status, error FROM job WHERE id = :id"), job)
            query = "SELECT number, config, outcome, timing FROM trial WHERE job_id = :id ORDER BY number"
            trials = [tuple(row) for row in connection.execute(text(query), job)]
        assert status in ("queued", "running", "succeeded"), error
        assert [number for number, *_ in trials] == list(range(len(trials))), "a number is missing"
        measured = [str(config) for _, config, _, timing in trials if timing is not None]
        assert len(measured) == len(set(measured)), "a config was measured twice"
        return status, trials

    def _check_database(self) -> None:
        """The file is whole, and what was told to be done is there."""
        with self._database() as connection:
            if self._engine.dialect.name == "sqlite":
                assert connection.exec_driver_sql("PRAGMA integrity_check").all() == [("ok",)]
                assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
            [(self.counts.trials,)] = connection.execute(text("SELECT count(*) FROM trial"))
            [(done,)] = connection.execute(text("SELECT count(*) FROM job WHERE status = 'succeeded'"))
            [(winners,)] = connection.execute(text("SELECT count(*) FROM best_config"))
        # NOTE: the winner is committed before its job is: there may be one more, and never a second.
        assert min(done, 1) <= winners <= 1, "the winner of a job that succeeded is missing, or there twice"

    @contextlib.contextmanager
    def _database(self) -> Iterator[Database]:
        with self._engine.connect() as connection:
            yield connection


def _measured(trial: tuple[Any, ...]) -> bool:
    return trial[-1] is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What each process does."""

    points: int
    seconds: float
    seed: int
    trials: int


def kill_in_processes(plan: Plan, urls: list[str], told: Callable[[Counts], None]) -> None:
    """Kill in a process for each database (empty: a SQLite file of its own), each with a service of its own.

    Raises:
        SystemExit: a check of one failed; it says which.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
        found = _spawn.SimpleQueue()
        for number, url in enumerate(urls):
            process = _spawn.Process(target=_kill, args=(plan, Path(folder), number, url, found))
            process.start()
            started.callback(process.join)
        counts, going = [Counts() for _ in urls], len(urls)
        wrong = []
        while going:
            number, said = found.get()
            if isinstance(said, Counts):
                counts[number] = said
                told(functools.reduce(operator.add, counts))
            else:
                going -= 1
                wrong += [f"process {number}: {said}"] if said else []
    if wrong:
        raise SystemExit("\n".join(wrong))


def _tell(found: Any, number: int, counts: Counts) -> None:
    found.put((number, counts))


def _kill(plan: Plan, folder: Path, number: int, url: str, found: Any) -> None:
    """Do it in this process, and tell counts and, at last, what went wrong."""
    own = folder / str(number)
    own.mkdir()
    wrong = ""
    try:
        killing = Killing(own, plan.seed + number, plan.trials, url)
        found.put(
            (number, killing.run(plan.points, plan.seconds, lambda counts: found.put((number, counts))))
        )
    except BaseException:
        wrong = f"{traceback.format_exc()}\n{(own / 'log').read_text()[-2000:]}"
        raise
    finally:
        found.put((number, wrong))


def report(counts: Counts, seconds: float, database: str, processes: int) -> dict[str, Any]:
    """What was done and found; that it came this far means that nothing was lost."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "database": database,
        "processes": processes,
        "kills": dict(counts.kills),
        "seconds": round(seconds, 1),
        "jobs_succeeded": len(counts.jobs),
        "trials_committed": counts.trials,
        "trials_lost": 0,
        "measured_twice": 0,
        "databases_damaged": 0,
        "resume_s": {
            victim: {"median": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)}
            for victim, seconds in counts.resume_s.items()
        },
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="most of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each job")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    database = "PostgreSQL" if arguments.postgresql else "SQLite"
    slices: list[dict[str, Any]] = []
    if arguments.out and arguments.out.exists():
        slices = json.loads(arguments.out.read_text())["slices"]

    def tell(counts: Counts) -> None:
        found = report(counts, time.monotonic() - started, database, arguments.processes)
        print(json.dumps(found, indent=1), flush=True)  # noqa: T201
        if arguments.out:
            every = [*slices, found]
            kills = sum(sum(one["kills"].values()) for one in every)
            arguments.out.write_text(json.dumps({"kills": kills, "slices": every}, indent=1) + "\n")

    points = -(-arguments.points // arguments.processes)
    plan = Plan(points + points % 2, arguments.seconds, arguments.seed, arguments.trials)
    with _database_urls(arguments.postgresql, arguments.processes) as urls:
        kill_in_processes(plan, urls, tell)


@contextlib.contextmanager
def _database_urls(postgresql: bool, count: int) -> Iterator[list[str]]:
    """Of databases of a new PostgreSQL server; empty for SQLite files."""
    if not postgresql:
        yield [""] * count
        return
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("no PostgreSQL here: install the package 'postgresql'")
    with running(binaries, services=count) as server:
        names = [f"kills_{number}" for number in range(count)]
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for name in names:
                connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        yield [server.url(name) for name in names]


if __name__ == "__main__":
    main()
