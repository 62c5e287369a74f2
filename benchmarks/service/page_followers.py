"""What ten open pages of a running job cost its tuning, on the host.

    python -m benchmarks.service.page_followers --out benchmarks/results/page-followers.json

Runs one job again and again, each time with the same seed of the random sampler and without a stored winner,
so that it measures the same configs in the same order. Meanwhile ten connections follow the job as open pages
do, in every second window of ``--window`` seconds; the next run has them in the other windows. The first run
fills the cache of compiled kernels and does not count. Of each window the first second does not count either.

``trial_time``: the time of a trial with pages over its time without, from the end of the trial before, as
median over the configs that were measured both ways, with a 99 % interval; each time is the median of its
runs. ``cpu``: processor time of the service alone, the device's worker and the pages left out. It is what
the pages take where the tuner shares cores with the service; other load of the machine does not change it
much, as it does the times.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.common.results import machine_facts, now, write_json
from benchmarks.common.serving import Serving, serving
from benchmarks.service.lookup_load import get
from tilewright import Client, GemmProblem
from tuner.measure.stats import median_interval

PROBLEM = GemmProblem(192, 192, 192, "float32", "nn")  # type: ignore[arg-type]
PAGES = 10
SETTLE_S = 1.0
_SEED = 7


@contextmanager
def followers(url: str, job_id: str, count: int) -> Iterator[list[int]]:
    """So many pages that follow a job; gives how many bytes each got."""
    address, got, stop = urlsplit(url), [0] * count, threading.Event()
    with selectors.DefaultSelector() as ready:
        sockets = [socket.create_connection((address.hostname, address.port), 30) for _ in range(count)]
        for number, one in enumerate(sockets):
            one.sendall(get(f"/view/jobs/{job_id}/live?after=-1"))
            ready.register(one, selectors.EVENT_READ, number)

        def read() -> None:
            while not stop.is_set():
                for key, _ in ready.select(0.2):
                    part = sockets[key.data].recv(2**16)
                    got[key.data] += len(part)
                    if not part:
                        ready.unregister(sockets[key.data])

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield got
        finally:
            stop.set()
            thread.join()
            for one in sockets:
                one.close()


def trials(database: Path, job_id: str) -> list[tuple[str, float]]:
    """The digest of each config of a job, and when its trial ended."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as opened:
        query = "select config_digest, created from trial where job_id = ? order by number"
        rows = opened.execute(query, (job_id,)).fetchall()
    return [(digest, datetime.fromisoformat(f"{when}+00:00").timestamp()) for digest, when in rows]


class Run:
    """One run of the job: its windows, and what they cost."""

    def __init__(self, server: Serving, database: Path, windows: int, window_s: float) -> None:
        self._server, self._database = server, database
        self._windows, self._window_s = windows, window_s
        self.marks: list[tuple[bool, float, float, float]] = []  # with pages, from, to, CPU seconds
        self.ended: list[tuple[str, float]] = []

    def go(self, client: Client, first: bool) -> None:
        """Start the job, follow it in every second window, from the first one on if ``first``, cancel it."""
        job = client.tune(PROBLEM, max_trials=5000, sampler="random", seed=_SEED, wait=False)
        while len(trials(self._database, job.id)) < 3:
            time.sleep(0.1)
        for number in range(self._windows):
            self._window(job.id, (number % 2 == 0) is first)
        client.cancel(job.id)
        client.wait(job.id)
        self.ended = trials(self._database, job.id)

    def _window(self, job_id: str, followed: bool) -> None:
        with followers(self._server.url, job_id, PAGES if followed else 0) as got:
            time.sleep(SETTLE_S)
            seen, spent, began = sum(got), self._server.cpu_seconds(), time.time()
            time.sleep(self._window_s - SETTLE_S)
            self.marks.append((followed, began, time.time(), self._server.cpu_seconds() - spent))
            if followed and sum(got) == seen:
                raise RuntimeError("the pages got nothing: they did not follow the job")

    def durations(self) -> Iterator[tuple[str, bool, float]]:
        """The seconds of each trial within a window, with its config and whether pages were open."""
        for (_, began), (digest, ended) in zip(self.ended, self.ended[1:], strict=False):
            for followed, start, end, _ in self.marks:
                if start <= began and ended <= end:
                    yield digest, followed, ended - began


def summary(runs: list[Run]) -> dict[str, Any]:
    """Time of trials, rate and processor time, with pages and without."""
    times: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for run in runs:
        for digest, followed, seconds in run.durations():
            times[digest, followed].append(seconds)
    both = sorted({digest for digest, followed in times if followed and (digest, False) in times})
    ratios = [statistics.median(times[one, True]) / statistics.median(times[one, False]) for one in both]
    trial_time = median_interval(ratios)
    found: dict[str, Any] = {
        "trial_time": {
            "ratio": round(trial_time.value, 4),
            "interval": [round(trial_time.low, 4), round(trial_time.high, 4)],
            "confidence": 0.99,
            "configs": len(both),
            "trials": sum(map(len, times.values())),
        }
    }
    shares: dict[bool, list[float]] = {True: [], False: []}
    for run in runs:
        for followed, start, end, cpu in run.marks:
            shares[followed].append(cpu / (end - start))
    # NOTE: window by window, so that what changes slowly is the same on both sides.
    more = median_interval([a - b for a, b in zip(shares[True], shares[False], strict=True)])
    found["cpu"] = {
        "unit": "seconds of one core per second",
        "with_pages": round(statistics.median(shares[True]), 5),
        "without": round(statistics.median(shares[False]), 5),
        "more": round(more.value, 5),
        "interval": [round(more.low, 5), round(more.high, 5)],
        "windows": len(shares[True]),
    }
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=float, default=6.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tilewright.db"
        os.environ |= {"TILEWRIGHT_CACHE_DIR": f"{folder}/cache", "TILEWRIGHT_LOCK_DIR": folder}
        with (
            serving(f"sqlite:///{database}", "--device", "host") as server,
            Client(server.url, timeout=60.0) as client,
        ):
            runs = []
            for number in range(arguments.runs + 1):
                run = Run(server, database, arguments.windows, arguments.window)
                run.go(client, number % 2 == 0)
                runs += [run] if number else []
                sys.stderr.write(f"run {number} of {arguments.runs}: {len(run.ended)} trials\n")
    result = {
        "date": now(),
        "machine": machine_facts(),
        "problem": str(PROBLEM),
        "pages": PAGES,
        "runs": arguments.runs,
        "window_s": arguments.window,
        **summary(runs),
    }
    if arguments.out:
        write_json(arguments.out, result)
    sys.stdout.write(f"{result}\n")


if __name__ == "__main__":
    main()
