"""A database that is held by another process, or whose disk is full: requests say when to come back, nothing
that was acknowledged is lost, and health answers all the while."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import pytest
from api_server import Server, finish, start

DEVICE_CLASS = "sm_90-132sm-139gb"
DISK_MIB = 24
SLACK_S = 5.0  # NOTE: others may be working on this machine
REPORTS = 60
REQUESTS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose database lies on a disk of its own, which no other process sees."""
    folder = tmp_path_factory.mktemp("small-disk")
    (folder / "disk").mkdir()
    mount = f'mount -t tmpfs -o size={DISK_MIB}m tilewright {folder / "disk"} && exec "$@"'
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    url = f"sqlite:///{folder / 'disk' / 'tilewright.db'}"
    running = start(folder, *alone, "sh", "-c", mount, "sh", database_url=url)
    yield running
    finish(running)


_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(server: Server) -> Iterator[None]:
    """Another process holds the database meanwhile."""
    inside = ["--mount", *([] if os.geteuid() == 0 else ["--user", "--preserve-credentials"])]
    command = ["nsenter", "--target", str(server.process.pid), *inside, sys.executable, "-c", _HOLD]
    database = str(server.folder / "disk" / "tilewright.db")
    with subprocess.Popen([*command, database], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield


def disk(server: Server) -> Path:
    return Path(f"/proc/{server.process.pid}/root{server.folder}/disk")


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx2.Client]:
    limits = httpx2.Limits(max_connections=2 * REPORTS)
    with httpx2.Client(base_url=server.url, timeout=120, limits=limits) as connected:
        yield connected


def report(http: httpx2.Client, m: int, problems: int = 1) -> httpx2.Response:
    misses = [{"m": m, "n": n, "k": 64, "dtype": "float32", "count": 1} for n in range(1, problems + 1)]
    body: dict[str, Any] = {"device_class": DEVICE_CLASS, "misses": misses}
    headers = {"Idempotency-Key": f"report-{m}"}
    return http.post("/misses", json=body, headers=headers)


def counts(http: httpx2.Client) -> dict[tuple[int, int], int]:
    """How often each problem was reported, by m and n."""
    found: dict[tuple[int, int], int] = {}
    query: dict[str, Any] = {"device_class": DEVICE_CLASS, "limit": 1000}
    while True:
        page = http.get("/misses", params=query).json()
        found |= {(miss["problem"]["m"], miss["problem"]["n"]): miss["count"] for miss in page["items"]}
        if not page.get("next"):
            return found
        query["cursor"] = page["next"]


def ready(http: httpx2.Client) -> httpx2.Response:
    return http.get("/health/ready")


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 3 * SLACK_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def fill(file: Path) -> None:
    """Take all the space of a disk."""
    with file.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(bytes(2**16))


def seconds_of(ask: Callable[[], httpx2.Response]) -> float:
    started = time.monotonic()
    ask()
    return time.monotonic() - started


@pytest.mark.long
def test_a_lock_of_another_process_fills_no_threads(server: Server, http: httpx2.Client) -> None:
    assert report(http, 1).status_code == 202
    with ThreadPoolExecutor(REPORTS) as pool:
        with held(server):
            asked = [pool.submit(report, http, 100 + number) for number in range(REPORTS)]
            time.sleep(0.5)
            health = [seconds_of(lambda: http.get("/health/ready")) for _ in range(50)]
            assert median(health) < 0.05
            assert max(health) < 1.0  # NOTE: others may be working on this machine
            assert seconds_of(lambda: http.get("/jobs")) < SLACK_S
            answers = [one.result(30) for one in asked]
            until(lambda: ready(http).status_code == 503)
            assert "another writer holds it" in ready(http).json()["detail"]
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["type"] for answer in answers} == {
            "urn:tilewright:problem:database-unavailable"
        }
        assert all(int(answer.headers["retry-after"]) > 0 for answer in answers)
        until(lambda: ready(http).status_code == 200)
        before = counts(http)
        assert all((100 + number, 1) not in before for number in range(REPORTS))
    for number in range(REPORTS):
        assert report(http, 100 + number).status_code == 202
    assert all(counts(http)[100 + number, 1] == 1 for number in range(REPORTS))


@pytest.mark.long
def test_a_full_disk_is_told_and_loses_nothing(server: Server, http: httpx2.Client) -> None:
    filler, kept, size = disk(server) / "filler", 0, 50
    fill(filler)
    until(lambda: ready(http).status_code == 503)
    assert "its disk is full" in ready(http).json()["detail"]
    # NOTE: what SQLite has of its log on the disk it can write anew.
    while (answer := report(http, 1000 + kept, size)).status_code == 202:
        kept += 1
        assert kept < 200
    assert (answer.status_code, answer.json()["type"]) == (507, "urn:tilewright:problem:storage-full")
    assert int(answer.headers["retry-after"]) > 0
    assert http.get("/jobs").status_code == 200
    assert ready(http).status_code == 503
    assert http.get("/health/live").status_code == 200
    filler.unlink()
    until(lambda: ready(http).status_code == 200)
    found = counts(http)
    assert {m for m, _ in found if m >= 1000} == set(range(1000, 1000 + kept))
    assert report(http, 1000 + kept, size).status_code == 202
    found = counts(http)
    assert all(found[1000 + m, n] == 1 for m in range(kept + 1) for n in range(1, size + 1))


def test_health_costs_no_line_and_little_time(server: Server, http: httpx2.Client) -> None:
    ready(http)
    size, cpu_s = (server.folder / "log").stat().st_size, server.cpu_s()
    for _ in range(REQUESTS):
        assert ready(http).status_code == 200
    assert (server.folder / "log").stat().st_size == size
    # Half a millisecond on a quiet machine, five times that at most on a busy one; a look at the database for
    # each took ten times that.
    assert (server.cpu_s() - cpu_s) / REQUESTS < 0.004
