"""``kill -9`` of the server and of its workers at random moments of tuning, and what is left after each.

    PYTHONPATH=tests/support/servers python tests/faults/kill_points.py --points 200 --out kill-points.json

At half of the points the server is killed, at half its device's process; compilers come on top. After each
the database must be whole and hold every trial that was committed before, and the job must go on; each job
must come to its end.
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
import os
import platform
import random
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from api_server import STOP_S, announced_url, children, environment

from service.cli.main import app
from tilewright import Client, GemmProblem
from tilewright.launch.host import cpu_info

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
TRIALS = 150  # of a job: many, since races take long
PATIENCE_S = 120.0
Trials = list[tuple[Any, ...]]
MEAN_S = 0.1  # from a job's going on to the next kill
MODULES = {"device worker": b"tuner.workers.device_worker", "compiler": b"tuner.workers.compile_worker"}
POINTS_A_COMPILER = 10


@dataclasses.dataclass
class ForkedServer:
    """A running service."""

    process: ForkServerProcess
    url: str

    def kill(self) -> None:
        """SIGKILL; it must have been alive."""
        self.process.kill()
        self.process.join(STOP_S)
        assert self.process.exitcode == -signal.SIGKILL

    def finish(self) -> None:
        """Stop it where it still runs."""
        self.process.terminate()
        self.process.join(STOP_S)
        self.process.kill()
        self.process.join()


def fork(folder: Path, **settings: object) -> ForkedServer:
    """Start a server with the database and the log of a folder."""
    context = _context()
    reader, writer = context.Pipe(duplex=False)
    log = folder / "log"
    process = context.Process(target=_serve, args=(environment(folder, **settings), log, writer))
    process.start()
    writer.close()
    with os.fdopen(os.dup(reader.fileno())) as printed:
        reader.close()
        return ForkedServer(process, announced_url(printed, log))


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["service.http.app", "service.cli.main"])
    return context


def _serve(environ: dict[str, str], log: Path, stdout: Connection) -> None:
    os.environ.clear()
    os.environ.update(environ)
    with log.open("a") as errors:
        os.dup2(errors.fileno(), 2)
    os.dup2(stdout.fileno(), 1)
    app(["serve", "--json"])


@dataclasses.dataclass
class Counts:
    """What was counted; ``resume_s`` is from each kill to the next measured trial or the job's end."""

    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    jobs: list[str] = dataclasses.field(default_factory=list)
    resume_s: dict[str, list[float]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )
    trials: int = 0


class Killing:
    """One database, one server after another, one job after another."""

    def __init__(self, folder: Path, seed: int, trials: int = TRIALS) -> None:
        self.counts = Counts()
        self._folder = folder
        self._trials = trials
        self._random = random.Random(seed)
        self._server = fork(folder)

    def run(self, points: int) -> Counts:
        """Kill so often, then let the last job come to its end."""
        victims = ["server", "device worker"] * (points // 2) + ["compiler"] * (points // POINTS_A_COMPILER)
        self._random.shuffle(victims)
        try:
            for victim in victims:
                self._ensure_job()
                time.sleep(self._random.expovariate(1 / MEAN_S))
                self._kill(victim)
            self._wait(lambda status, _: status == "succeeded")
            self._check_database()
            return self.counts
        finally:
            self._server.finish()

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
            self._server.kill()
        killed = time.monotonic()
        self._check_database()
        _, kept = self._job()
        assert kept[: len(before)] == before, "a committed trial is lost or changed"
        if victim == "server":
            self._server = fork(self._folder)
        self._wait(lambda status, trials: status == "succeeded" or any(map(_measured, trials[len(kept) :])))
        self.counts.kills[victim] += 1
        self.counts.resume_s[victim].append(time.monotonic() - killed)

    def _wait(self, reached: Callable[[str, Trials], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not reached(*self._job()):
            assert time.monotonic() < end, "the job did not go on"
            time.sleep(0.02)

    def _job(self) -> tuple[str, Trials]:
        """Status and trials of the last job as they are committed."""
        job = self.counts.jobs[-1:]
        with self._database() as connection:
            [(status, error)] = connection.execute("SELECT status, error FROM job WHERE id = ?", job)
            query = "SELECT number, config, outcome, timing FROM trial WHERE job_id = ? ORDER BY number"
            trials = connection.execute(query, job).fetchall()
        assert status in ("queued", "running", "succeeded"), error
        assert [number for number, *_ in trials] == list(range(len(trials))), "a number is missing"
        return status, trials

    def _check_database(self) -> None:
        """The file is whole, and what was told to be done is there."""
        with self._database() as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            [(self.counts.trials,)] = connection.execute("SELECT count(*) FROM trial")
            [(done,)] = connection.execute("SELECT count(*) FROM job WHERE status = 'succeeded'")
            [(winners,)] = connection.execute("SELECT count(*) FROM best_config")
        # NOTE: the winner is committed before its job is: there may be one more, and never a second.
        assert min(done, 1) <= winners <= 1, "the winner of a job that succeeded is missing, or there twice"

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._folder / "tilewright.db", timeout=30)) as connection:
            yield connection


def _measured(trial: tuple[Any, ...]) -> bool:
    return trial[-1] is not None


def report(counts: Counts, seconds: float) -> dict[str, object]:
    """What was done and found; that it came this far means that nothing was lost."""
    machine = {
        "cpu": cpu_info("model name"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "database": "SQLite",
        "kills": dict(counts.kills),
        "seconds": round(seconds, 1),
        "jobs_succeeded": len(counts.jobs),
        "trials_committed": counts.trials,
        "trials_lost": 0,
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = Killing(Path(folder), arguments.seed).run(arguments.points)
    text = json.dumps(report(counts, time.monotonic() - started), indent=1)
    print(text)  # noqa: T201
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
