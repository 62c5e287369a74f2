"""``kill -9`` of the server and of its workers at random moments of tuning, and what is left after each.

    python tests/faults/kill_points.py --points 200 --out benchmarks/results/kill-points.json

At each point the server, its device's process or a compiler is killed. After a server's death the database
must be whole and hold every trial that a client had seen; the next server must take the job up and go on.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import json
import os
import platform
import random
import signal
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from api_server import finish, start

from tilewright import Client, GemmProblem, wire
from tilewright.launch.host import cpu_info

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
TRIALS_A_JOB = 60
PATIENCE_S = 120.0
SHORTEST_S, LONGEST_S = 0.0, 1.0
VICTIMS = {"server": 1, "device worker": 1, "compiler": 1}  # how often each, as weights
MODULES = {"device worker": b"tuner.device_worker", "compiler": b"tuner.compile_worker"}


@dataclasses.dataclass
class Tally:
    """What was counted; ``resume_s`` is from a server's being ready to its first new trial."""

    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    jobs: list[str] = dataclasses.field(default_factory=list)
    resume_s: list[float] = dataclasses.field(default_factory=list)
    trials: int = 0


class Killing:
    """One database, one server after another, one job after another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.tally = Tally()
        self._folder = folder
        self._random = random.Random(seed)
        self._server = start(folder)
        self._seen = 0

    def run(self, points: int) -> Tally:
        """Kill so often, then let the last job come to its end."""
        try:
            for _ in range(points):
                self._ensure_job()
                time.sleep(self._random.uniform(SHORTEST_S, LONGEST_S))
                [victim] = self._random.choices(list(VICTIMS), list(VICTIMS.values()))
                self._kill(victim)
            with self._client() as client:
                last = client.wait(self.tally.jobs[-1])
                assert last.status is wire.JobStatus.SUCCEEDED
                self.tally.trials = sum(len(self._trials(client, job)) for job in self.tally.jobs)
            self._check_database()
            return self.tally
        finally:
            finish(self._server)

    def _ensure_job(self) -> None:
        with self._client() as client:
            jobs = self.tally.jobs
            if not jobs or client.job(jobs[-1]).status.final:
                for job in jobs[-1:]:
                    assert client.job(job).status is wire.JobStatus.SUCCEEDED, client.job(job).error
                options = {"max_trials": TRIALS_A_JOB, "seed": len(jobs)}
                jobs.append(client.tune(PROBLEM, wait=False, **options).id)  # type: ignore[arg-type]
            self._seen = len(self._trials(client, jobs[-1]))

    def _kill(self, victim: str) -> None:
        running = children(self._server.process.pid, MODULES[victim]) if victim in MODULES else []
        if running:
            self.tally.kills[victim] += 1
            os.kill(running[0], signal.SIGKILL)
        else:
            self.tally.kills["server"] += 1
            self._kill_server()

    def _kill_server(self) -> None:
        self._server.stop(signal.SIGKILL)
        finish(self._server)
        kept = self._check_database()
        assert kept >= self._seen, f"{self._seen} trials had been seen, {kept} are left"
        self._server = start(self._folder)
        started = time.monotonic()
        with self._client() as client:
            while len(self._trials(client, self.tally.jobs[-1])) == kept:
                if client.job(self.tally.jobs[-1]).status.final:
                    return
                assert time.monotonic() - started < PATIENCE_S, "the job did not go on"
                time.sleep(0.05)
        self.tally.resume_s.append(time.monotonic() - started)

    def _check_database(self) -> int:
        """The database is whole; gives the number of trials of the last job."""
        connection = sqlite3.connect(self._folder / "tilewright.db")
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            query = "SELECT number FROM trial WHERE job_id = ? ORDER BY number"
            numbers = [number for (number,) in connection.execute(query, self.tally.jobs[-1:])]
        finally:
            connection.close()
        assert numbers == list(range(len(numbers))), "a trial is missing or there twice"
        return len(numbers)

    def _trials(self, client: Client, job_id: str) -> list[wire.TrialView]:
        return client.trials(job_id, limit=1000).items

    def _client(self) -> Client:
        return Client(self._server.url, timeout=60.0, offline=True)


def children(pid: int, module: bytes) -> list[int]:
    """Processes that a process started to run a module."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and module in command.split(b"\0"):
            found.append(int(path.parent.name))
    return found


def report(tally: Tally, points: int, seconds: float) -> dict[str, object]:
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
        "points": points,
        "kills": dict(tally.kills),
        "seconds": round(seconds, 1),
        "jobs_succeeded": len(tally.jobs),
        "trials_committed": tally.trials,
        "trials_lost": 0,
        "databases_damaged": 0,
        "resume_s_median": round(statistics.median(tally.resume_s), 2) if tally.resume_s else None,
        "resume_s_max": round(max(tally.resume_s), 2) if tally.resume_s else None,
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
        tally = Killing(Path(folder), arguments.seed).run(arguments.points)
    text = json.dumps(report(tally, arguments.points, time.monotonic() - started), indent=1)
    print(text)  # noqa: T201
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
