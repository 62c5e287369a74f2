"""A PostgreSQL server whose processes stand still, as on a host that hangs: connections stay open and nothing
answers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx2
import postgres_server
import psycopg
import pytest
from api_server import finish, start

REPORTS = 60
ROUNDS = 40
USUAL_S, LONGEST_S = 0.05, 2.0  # NOTE: others may be working on this machine
BINARIES = postgres_server.find_binaries()
PATHS = {"/health/live": 200, "/health/startup": 200, "/health/ready": None, "/nothing-here": 404}


@contextlib.contextmanager
def frozen(dsn: str) -> Iterator[None]:
    """Every process of the PostgreSQL server stands still meanwhile."""
    with psycopg.connect(dsn, autocommit=True) as session:
        rows = session.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
        (folder,) = session.execute("SHOW data_directory").fetchone() or ("",)
        backends = [pid for (pid,) in rows if pid != session.info.backend_pid]
    postmaster = int((Path(folder) / "postmaster.pid").read_text().splitlines()[0])
    pids = [postmaster, *backends]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.skipif(BINARIES is None, reason="PostgreSQL's server is not installed")
def test_health_and_errors_answer_from_memory_while_the_database_stands_still(tmp_path: Path) -> None:
    assert BINARIES is not None
    with postgres_server.running(BINARIES) as postgres, contextlib.ExitStack() as stack:
        with psycopg.connect(postgres.dsn, autocommit=True) as session:
            session.execute("CREATE DATABASE tilewright")
        server = start(tmp_path, database_url=postgres.url("tilewright"))
        stack.callback(finish, server)
        http = stack.enter_context(httpx2.Client(base_url=server.url, timeout=120))
        pool = stack.enter_context(ThreadPoolExecutor(REPORTS))
        assert http.get("/health/ready").status_code == 200
        seconds: dict[str, list[float]] = {path: [] for path in PATHS}
        with frozen(postgres.dsn):
            # NOTE: without a timeout of its own each would end with the test.
            reports = [pool.submit(report, server.url, number) for number in range(REPORTS)]
            for _ in range(ROUNDS):
                for path, status in PATHS.items():
                    began = time.monotonic()
                    found = http.get(path).status_code
                    seconds[path].append(time.monotonic() - began)
                    assert found == status or (status is None and found in (200, 503))
                time.sleep(0.2)
        assert {one.result(60) for one in reports} <= {202, 503}
        for path, taken in seconds.items():
            assert median(taken) < USUAL_S, path
            assert max(taken) < LONGEST_S, path


def report(url: str, number: int) -> int:
    miss = {"m": number + 1, "n": 8, "k": 64, "dtype": "float32", "count": 1}
    body = {"device_class": "sm_90-132sm-139gb", "misses": [miss]}
    return httpx2.post(f"{url}/misses", json=body, timeout=60).status_code
