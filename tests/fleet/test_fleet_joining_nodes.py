"""How soon a node that joins a busy fleet takes work."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: 'make test-fleet' installs it")

import api_server
import fleet_cluster

from tilewright import Client, GemmProblem
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
JOINS = 3
WITHIN_S = 5.0


def test_a_node_that_joins_takes_a_waiting_job_within_5_s(tmp_path: Path) -> None:
    """One of three at least: each runs a job from then on, so that the last has the least of the cores.

    On a machine that others load as well, it may take three times as long as Python to import what it runs.
    """
    with fleet_cluster.running(tmp_path) as fleet:
        server = fleet.serve()
        import_s = importing()
        within_s = max(WITHIN_S, 3 * import_s)
        try:
            seconds = joins(fleet, server.url, f"sqlite:///{tmp_path / 'fleet.db'}", within_s)
        finally:
            api_server.finish(server)
    print(f"seconds from a node's start to its first job: {seconds}; an import took {import_s:.2f}")  # noqa: T201
    assert min(seconds) < within_s, seconds


def importing() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import service.fleet.actor"], check=True)
    return time.monotonic() - started


def joins(fleet: fleet_cluster.Fleet, url: str, database: str, within_s: float) -> list[float]:
    """The seconds of each node until one takes less than ``within_s``, with a job for each."""
    seconds = []
    with Client(url, timeout=60.0) as client, contextlib.closing(Store.open(database)) as store:
        fleet.add("n0")
        wait_for(lambda: bool(client.devices()))
        ids = [client.tune(PROBLEM, max_trials=5000, seed=seed, wait=False).id for seed in range(JOINS + 1)]
        wait_for(lambda: running(store, ids) == 1)
        for joined in range(1, JOINS + 1):
            fleet.add(f"n{joined}")
            started = time.monotonic()
            wait_for(lambda joined=joined: running(store, ids) > joined)
            seconds.append(round(time.monotonic() - started, 2))
            if seconds[-1] < within_s:
                break
        client.cancel_jobs(m=PROBLEM.m)
    return seconds


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(store: Store, ids: list[str]) -> int:
    with store.read() as session:
        return sum(jobs.known(session, one).status is JobStatus.RUNNING for one in ids)
