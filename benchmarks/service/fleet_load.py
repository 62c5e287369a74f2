"""What clients and devices of a fleet cost a service and its PostgreSQL, each request and each trial.

    python -m benchmarks.service.fleet_load --database-url postgresql+psycopg://... --out FILE

The database must be an empty one on this machine, as its processor time is read there. It gets ``--winners``
winners of a device class, of which a service hands out the config set, then one item after the other is done
again and again for ``--seconds`` on 8 connections or threads. ``service_cpu_ms`` and ``database_cpu_ms`` are
processor time of each, which other load of the machine does not change much; ``per_second`` is what the
machine did beside its other load. ``docs/fleet.md`` multiplies them by the hosts and GPUs of a fleet.

``event_ms`` is the time from the commit of an event to its arrival at each of 50 followers of the service.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import text

from benchmarks.common.results import machine_facts, now, write_json
from benchmarks.common.serving import Serving, serving
from benchmarks.service.lookup_fill import CLASS, DEVICE, PROVENANCE, Filled, fill
from benchmarks.service.lookup_load import Ask, answer, get, load, post
from tilewright import Config, GemmProblem
from tilewright.artifact import Resources
from tilewright.schema.job import TuneRequest
from tilewright.schema.trial import Outcome, Timing, Trial
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.trials import JobRecorder

AT_ONCE = 8
MISSES = 20  # of a report
FOLLOWERS = 50
EVENTS = 100
LEASE_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Database:
    """A PostgreSQL server of this machine, and what it did so far."""

    def __init__(self, url: str) -> None:
        self.url, self.store = url, Store.open(url)
        with self.store.engine.connect() as connection:
            backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        self._server = int(_stat(backend)[1])

    def cpu_seconds(self) -> float:
        """Processor time of all its processes, also of those that ended."""
        ended = [int(ticks) for ticks in _stat(self._server)[11:15]]
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        there = [fields for pid in pids if (fields := _stat(pid)) and int(fields[1]) == self._server]
        return (sum(ended) + sum(int(fields[11]) + int(fields[12]) for fields in there)) / _TICKS

    def log_bytes(self) -> int:
        """Bytes that it wrote to its log so far, which replicas and backups get, too."""
        with self.store.engine.connect() as connection:
            found = connection.execute(text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))
            return int(found.scalar_one())


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def measured(database: Database, found: dict[str, Any]) -> Iterator[None]:
    """Add what the database did in the block to ``found``, for each of its ``requests``."""
    spent, written = database.cpu_seconds(), database.log_bytes()
    yield
    found["database_cpu_ms"] = round(1e3 * (database.cpu_seconds() - spent) / found["requests"], 3)
    found["database_log_bytes"] = round((database.log_bytes() - written) / found["requests"])


def of_clients(server: Serving, database: Database, filled: Filled, seconds: float) -> dict[str, Any]:
    """What a client host asks for: a newer set, a set, its kernels, and to take its report of misses."""
    size, tag = asyncio.run(_set(server.url))
    bundle = f"/config-sets/{tag.strip(chr(34))}/bundle"

    def misses(chance: random.Random) -> bytes:
        shapes = [{"m": chance.randrange(1, 10**6), "n": 4096, "k": 4096, "count": 3} for _ in range(MISSES)]
        return post("/misses", {"device_class": CLASS, "misses": shapes})

    asked: dict[str, tuple[int, Ask]] = {
        "is there a newer set (304)": (304, lambda _: get(_SET, **{"If-None-Match": tag})),
        f"a set of {len(filled.problems)} winners": (200, lambda _: get(_SET)),
        f"its {len(filled.digests)} kernels": (200, lambda _: get(bundle)),
        f"a report of {MISSES} misses": (202, misses),
    }
    found: dict[str, Any] = {"set_bytes": size, "bundle_bytes": asyncio.run(_size(server.url, bundle))}
    for name, (status, ask) in asked.items():
        asyncio.run(load(server, status, ask, 1, 0.5))
        one: dict[str, Any] = {}
        with measured(database, one):
            one |= asyncio.run(load(server, status, ask, AT_ONCE, seconds))
        one["service_cpu_ms"] = one.pop("server_cpu_ms")
        found[name] = one
    return found


_SET = f"/config-sets/current?device_class={CLASS}"


async def _set(url: str) -> tuple[int, str]:
    head, body = await _answer(url, _SET)
    lines = head.decode().split("\r\n")
    return len(body), next(line.partition(": ")[2] for line in lines if line.lower().startswith("etag:"))


async def _size(url: str, path: str) -> int:
    return len((await _answer(url, path))[1])


async def _answer(url: str, path: str) -> tuple[bytes, bytes]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**28)
    writer.write(get(path))
    found = await answer(reader)
    writer.close()
    return found


def of_devices(database: Database, seconds: float) -> dict[str, Any]:
    """What a device asks of the database: to keep a trial, to extend its lease, and for a job."""
    recorders = [_recorder(database.store, number) for number in range(AT_ONCE)]

    def trial(thread: int, number: int) -> None:
        recorders[thread][1].add_trial(_trial(number), None)

    def lease(thread: int, _: int) -> None:
        with database.store.begin() as session:
            claims.renew(session, recorders[thread][0], 1, LEASE_S)

    def idle(thread: int, _: int) -> None:
        with database.store.begin() as session:
            claims.requeue_interrupted(session, "idle", f"device {thread}")
            claims.claim(session, "idle", f"device {thread}", LEASE_S)

    asked = {"a trial": trial, "a lease": lease, "an idle device that looks for a job": idle}
    return {name: _repeated(database, work, seconds) for name, work in asked.items()}


def _repeated(database: Database, work: Callable[[int, int], None], seconds: float) -> dict[str, Any]:
    end, found = time.monotonic() + seconds, dict[str, Any]()

    def run(thread: int) -> list[float]:
        took = list[float]()
        while time.monotonic() < end:
            started = time.perf_counter()
            work(thread, len(took))
            took.append(time.perf_counter() - started)
        return took

    with measured(database, found):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            took = sorted(one for each in pool.map(run, range(AT_ONCE)) for one in each)
        found |= {"requests": len(took), "per_second": round(len(took) / seconds, 1)}
        found["p50_ms"] = round(1e3 * statistics.median(took), 3)
    return found


def _recorder(store: Store, number: int) -> tuple[str, JobRecorder]:
    wanted = TuneRequest(GemmProblem(64 + number, 64, 64), max_trials=10**4)
    with store.begin() as session:
        jobs.submit(session, wanted, DEVICE)
        job = claims.claim(session, CLASS, f"load {number}", 10 * LEASE_S)
    assert job is not None
    return job.id, JobRecorder(store, job.id)


def _trial(number: int) -> Trial:
    config = Config.of("wgmma", {"tile_m": 128, "tile_n": 256, "stages": 4, "number": number})
    samples = tuple(100.0 + 0.013 * sample for sample in range(16))
    return Trial(
        outcome=Outcome.OK,
        timing=Timing(samples, 100.1, 100.0, 100.2, "rotated-v1"),
        check_s=0.01,
        measure_s=0.05,
        number=number,
        config=config,
        resources=Resources(168),
        provenance=PROVENANCE,
        compile_s=0.3,
    )


def of_followers(server: Serving, database: Database) -> dict[str, Any]:
    """How long events take from their commit to each follower, and what that costs."""
    with database.store.begin() as session:
        job_id = jobs.submit(session, TuneRequest(GemmProblem(8, 8, 8)), DEVICE)[0].id
    address, arrived = urlsplit(server.url), [list[float]() for _ in range(FOLLOWERS)]
    with ExitStack() as opened:
        threads = list[threading.Thread]()
        for number in range(FOLLOWERS):
            one = opened.enter_context(socket.create_connection((address.hostname, address.port), 60))
            one.sendall(get(f"/jobs/{job_id}/events"))
            threads.append(threading.Thread(target=_arrivals, args=(one, arrived[number])))
            threads[-1].start()
        time.sleep(2.0)
        spent, sent = server.cpu_seconds(), list[float]()
        for number in range(EVENTS):
            with database.store.begin() as session:
                jobs.append_event(session, job_id, "trial", {"number": number})
                sent.append(time.monotonic())
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        cpu = server.cpu_seconds() - spent
    took = sorted(1e3 * (b - a) for each in arrived for a, b in zip(sent, each, strict=True))
    return {
        "followers": FOLLOWERS,
        "events": EVENTS,
        "event_ms": {"p50": round(took[len(took) // 2], 1), "p99": round(took[int(0.99 * len(took))], 1)},
        "service_cpu_ms_per_event_and_follower": round(1e3 * cpu / EVENTS / FOLLOWERS, 4),
    }


def _arrivals(follower: socket.socket, found: list[float]) -> None:
    """Note when each event arrives."""
    while len(found) < EVENTS:
        count = follower.recv(2**16).count(b"event: trial")
        found += [time.monotonic()] * count


CLIENTS, REFRESH_S = 10_000, 300.0
GPUS, TRIALS_A_SECOND, IDLE_S = 1_000, 1.0, 0.5


def arithmetic(result: dict[str, Any]) -> list[list[str]]:
    """The rows of the table of a fleet of ``CLIENTS`` hosts and ``GPUS``: what is done, how often a second,
    the cores that this takes of the services and of PostgreSQL, and the megabytes a second that it moves."""
    clients, devices = result["clients"], result["devices"]
    asked, fetched, kernels, missed = (one for one in clients.values() if isinstance(one, dict))
    trial, _, idle = devices.values()
    often, set_bytes = CLIENTS / REFRESH_S, clients["set_bytes"]
    rows: list[tuple[str, float, dict[str, Any], float]] = [
        ("clients ask for a newer set", often, asked, 0.0),
        ("they fetch a new one of 500 winners", often, fetched, set_bytes),
        (f"each reports {MISSES} misses", often, missed, missed["database_log_bytes"]),
        ("all start within 300 s without a cache", often, kernels, clients["bundle_bytes"]),
        ("GPUs keep a trial a second", GPUS * TRIALS_A_SECOND, trial, trial["database_log_bytes"]),
        ("idle ones look for a job", GPUS / IDLE_S, idle, 0.0),
    ]
    return [
        [
            name,
            f"{rate:.0f}",
            f"{rate * cost['service_cpu_ms'] / 1e3:.2g}" if "service_cpu_ms" in cost else "-",
            f"{rate * cost['database_cpu_ms'] / 1e3:.2g}",
            f"{rate * size / 1e6:.3g}" if size else "-",
        ]
        for name, rate, cost, size in rows
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--winners", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    filled = fill(arguments.database_url, 10 * arguments.winners, trials_a_job=10)
    database = Database(arguments.database_url)
    result: dict[str, Any] = {
        "date": now(),
        "machine": machine_facts(),
        "seconds": arguments.seconds,
    }
    with serving(arguments.database_url, "--device", "host") as server:
        result["clients"] = of_clients(server, database, filled, arguments.seconds)
        result["followers"] = of_followers(server, database)
    result["devices"] = of_devices(database, arguments.seconds)
    database.store.close()
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()
