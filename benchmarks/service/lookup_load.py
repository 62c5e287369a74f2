"""How many lookups one service answers, and how fast, against a database with a million trials.

    python -m benchmarks.service.lookup_load --out benchmarks/results/lookup-load.json

Fills a SQLite database with as many problems as trials fill (1,000 a job), each with a winner and its kernel,
starts ``tilewright serve`` on it, and asks over keep-alive connections of one other process: each question
for ``--seconds`` on 1 and on 8 connections. Latency is from the first byte sent to the last received;
``server_cpu_ms`` is the processor time that the service spent on a request, which other load does not inflate
as it does the latency. Then exact lookups come at 1,000 a second, each at its time over 8 connections: their
latency counts from that time on.

A second database has ``--winners`` winners. Ten times one of them changes, and ``--clients`` clients that
have the set before fetch the new one within two seconds, each over a connection of its own, while a process
of its own looks up problems; their latency is told for each change and for all together. The clients'
process has a lower priority than the other two: clients have machines of their own, so what they take of
this one must not count as the service's time.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from benchmarks.common.results import machine_facts, now, tell
from benchmarks.common.serving import Serving, serving
from benchmarks.service.lookup_fill import ARCH, CLASS, Filled, fill, improve
from tilewright import GemmProblem

EXACT = "GET /best-config, exact"
CONNECTIONS = (1, 8)
PROBLEMS_A_LOOKUP = 500
BATCH = f"POST /best-config/lookup, {PROBLEMS_A_LOOKUP} problems"
WITHIN_S = 2.0
LOOKUPS_A_SECOND = 100
STEADY_A_SECOND = 1000
CHANGES = 10
CLIENTS_NICE = 10
SET_PATH = f"/config-sets/current?device_class={CLASS}"
Ask = Callable[[random.Random], bytes]


def get(path: str, **headers: str) -> bytes:
    """A request as it goes over the wire."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def post(path: str, body: dict[str, Any]) -> bytes:
    """The same with a JSON body."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content


def questions(filled: Filled, tag: str) -> dict[str, tuple[int, Ask]]:
    """What is asked, by name, with the status that must come back."""

    def exact(chance: random.Random) -> bytes:
        return get(f"/best-config?{urlencode(_query(chance.choice(filled.problems)))}")

    def near(chance: random.Random) -> bytes:
        problem = chance.choice(filled.problems)
        asked = dataclasses.replace(problem, m=problem.m + chance.randrange(1, 64))
        return get(f"/best-config?{urlencode(_query(asked) | {'match': 'nearest'})}")

    def many(chance: random.Random) -> bytes:
        problems = [_extents(problem) for problem in chance.choices(filled.problems, k=PROBLEMS_A_LOOKUP)]
        return post("/best-config/lookup", {"device_class": CLASS, "problems": problems})

    def current(_: random.Random) -> bytes:
        return get(SET_PATH, **{"If-None-Match": tag})

    def kernel(chance: random.Random) -> bytes:
        digest = chance.choice(filled.digests)
        return get(f"/artifacts/{digest}", **{"If-None-Match": f'"{digest}"'})

    return {
        EXACT: (200, exact),
        "GET /best-config, nearest": (200, near),
        BATCH: (200, many),
        "GET /config-sets/current, 304": (304, current),
        "GET /artifacts/{digest}, 304": (304, kernel),
    }


def _query(problem: GemmProblem) -> dict[str, object]:
    return {"arch": ARCH, **_extents(problem)}


def _extents(problem: GemmProblem) -> dict[str, int]:
    return {"m": problem.m, "n": problem.n, "k": problem.k}


async def load(server: Serving, status: int, ask: Ask, connections: int, seconds: float) -> dict[str, float]:
    """Ask on so many connections for so long; requests a second and milliseconds."""
    end = time.monotonic() + seconds
    started, spent = time.perf_counter(), server.cpu_seconds()
    each = await asyncio.gather(
        *(_one(server.url, status, ask, number, end) for number in range(connections))
    )
    elapsed = time.perf_counter() - started
    costs = [1e3 * cost for costs in each for cost in costs]
    return {
        "connections": connections,
        "requests": len(costs),
        "per_second": round(len(costs) / elapsed, 1),
        **{f"{place}_ms": ms for place, ms in _spread(costs, 3).items()},
        "server_cpu_ms": round(1e3 * (server.cpu_seconds() - spent) / len(costs), 3),
    }


async def _one(url: str, status: int, ask: Ask, seed: int, end: float) -> list[float]:
    address, chance, costs = urlsplit(url), random.Random(seed), []
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    wanted = f"HTTP/1.1 {status} ".encode()
    while time.monotonic() < end:
        request = ask(chance)
        started = time.perf_counter()
        writer.write(request)
        head, _ = await answer(reader)
        costs.append(time.perf_counter() - started)
        if not head.startswith(wanted):
            raise RuntimeError(f"{request.decode()} was answered with {head.decode()}")
    writer.close()
    return costs


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head, await reader.readexactly(int(line.partition(b":")[2]))
    return head, b""


async def measure(server: Serving, filled: Filled, seconds: float) -> dict[str, Any]:
    """Every question, and what fetching a whole config set costs."""
    first = await _fetch(server.url)
    again = await _fetch(server.url)
    loads = {}
    for name, (status, ask) in questions(filled, again["tag"]).items():
        await load(server, status, ask, 1, 0.5)
        loads[name] = [await load(server, status, ask, count, seconds) for count in CONNECTIONS]
        if name == EXACT:  # the other questions crowd its answers out of the service's memory
            steady = await _steady(server, ask, seconds)
    fetches = {"first, made on demand": first, "again": again}
    whole = {name: {"bytes": one["bytes"], "ms": one["ms"]} for name, one in fetches.items()}
    return {
        "loads": loads,
        f"{STEADY_A_SECOND} exact lookups a second": steady,
        f"config set of {len(filled.problems)} winners": whole,
    }


def change(
    server: Serving,
    database_url: str,
    filled: Filled,
    clients: int,
    winner: int,
    lookups: Executor,
    crowd: Executor,
) -> tuple[dict[str, Any], list[float]]:
    """Change a winner; so many clients fetch the set within ``WITHIN_S`` seconds in the process of ``crowd``,
    and lookups go on in that of ``lookups``, whose milliseconds come second."""
    before = asyncio.run(_fetch(server.url))["tag"]
    _await_idle(server)
    improve(database_url, filled.problems[winner])
    started, spent = time.perf_counter(), server.cpu_seconds()
    asked = round(WITHIN_S * LOOKUPS_A_SECOND)
    asking = lookups.submit(_lookups, server.url, filled, asked)
    fetched = crowd.submit(_fetches, server.url, before, clients).result()
    seconds = time.perf_counter() - started
    costs = asking.result()
    if {one["tag"] for one in fetched} & {before}:
        raise RuntimeError("a client was told that the set before is served still")
    figures = {
        "clients": clients,
        "all_after_s": round(seconds, 2),
        "bytes_each": fetched[0]["bytes"],
        "set_ms": _spread([one["ms"] for one in fetched]),
        "lookup_ms": _spread(costs),
        "server_cpu_s": round(server.cpu_seconds() - spent, 2),
        "server_peak_mib": server.peak_mib(),
    }
    return figures, costs


def _lookups(url: str, filled: Filled, count: int) -> list[float]:
    """Milliseconds of so many exact lookups, ``LOOKUPS_A_SECOND``."""
    _, exact = questions(filled, "")[EXACT]
    return asyncio.run(_paced(url, exact, count, LOOKUPS_A_SECOND))


def _fetches(url: str, known: str, clients: int) -> list[dict[str, Any]]:
    """What each of so many clients, which have the set ``known``, gets within ``WITHIN_S`` seconds."""

    async def fetches() -> list[dict[str, Any]]:
        delays = [WITHIN_S * i / clients for i in range(clients)]
        return await asyncio.gather(*(_fetch(url, delay, known) for delay in delays))

    return asyncio.run(fetches())


def _await_idle(server: Serving) -> None:
    """Wait until the service has noted what is stale in a new set."""
    spent = -1.0
    while server.cpu_seconds() - spent > 0.1:
        spent = server.cpu_seconds()
        time.sleep(2.0)


async def _steady(server: Serving, ask: Ask, seconds: float) -> dict[str, Any]:
    """``STEADY_A_SECOND`` lookups a second over all connections."""
    connections = CONNECTIONS[-1]
    rate = STEADY_A_SECOND / connections
    started, spent = time.perf_counter(), server.cpu_seconds()
    each = await asyncio.gather(
        *(
            _paced(server.url, ask, round(seconds * rate), rate, number / STEADY_A_SECOND)
            for number in range(connections)
        )
    )
    elapsed = time.perf_counter() - started
    costs = [cost for costs in each for cost in costs]
    return {
        "lookups": len(costs),
        "per_second": round(len(costs) / elapsed, 1),
        "ms": _spread(costs),
        "server_cpu": round((server.cpu_seconds() - spent) / elapsed, 2),
    }


async def _paced(url: str, ask: Ask, count: int, rate: float, first_s: float = 0.0) -> list[float]:
    """Milliseconds of so many lookups, one after the other, each at its time of a steady rate."""
    address, pick, costs = urlsplit(url), random.Random(first_s), []
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    began = time.perf_counter() + first_s
    for number in range(count):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        writer.write(ask(pick))
        await answer(reader)
        costs.append(1e3 * (time.perf_counter() - due))
    writer.close()
    return costs


def _spread(costs: list[float], digits: int = 2) -> dict[str, float]:
    ordered = sorted(costs)
    places = {"p50": len(costs) // 2, "p99": int(0.99 * len(costs)), "max": len(costs) - 1}
    return {name: round(ordered[place], digits) for name, place in places.items()}


async def _fetch(url: str, delay: float = 0.0, known: str = '"none"') -> dict[str, Any]:
    await asyncio.sleep(delay)
    address = urlsplit(url)
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**26)
    writer.write(get(SET_PATH, **{"If-None-Match": known, "Accept-Encoding": "gzip, deflate"}))
    head, body = await answer(reader)
    milliseconds = 1e3 * (time.perf_counter() - started)
    writer.close()
    [tag] = [
        line.partition(": ")[2] for line in head.decode().split("\r\n") if line.lower().startswith("etag:")
    ]
    return {"tag": tag, "bytes": len(body), "ms": round(milliseconds, 2)}


def _changes(winners: int, clients: int) -> dict[str, Any]:
    """What each of several changes costs a service that made the set before, and the lookups of all."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/winners.db"
        filled = fill(url, 10 * winners, trials_a_job=10)
        fresh = multiprocessing.get_context("spawn")
        with (
            ProcessPoolExecutor(1, fresh) as lookups,
            ProcessPoolExecutor(1, fresh, os.nice, (CLIENTS_NICE,)) as crowd,
            serving(url, "--device", "host") as server,
        ):
            lookups.submit(_lookups, server.url, filled, 1).result()  # once it has started
            crowd.submit(_fetches, server.url, "none", 1).result()
            each = [change(server, url, filled, clients, one, lookups, crowd) for one in range(CHANGES)]
    costs = [cost for _, costs in each for cost in costs]
    return {"changes": [figures for figures, _ in each], "lookups": len(costs), "lookup_ms": _spread(costs)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--winners", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    changed = _changes(arguments.winners, arguments.clients)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "filled.db"
        filled = fill(f"sqlite:///{path}", arguments.trials)
        size = path.stat().st_size
        with serving(f"sqlite:///{path}", "--device", "host") as server:
            loads = asyncio.run(measure(server, filled, arguments.seconds))
    result = {
        "date": now(),
        "machine": machine_facts(),
        "database": {
            "kind": "SQLite",
            "trials": arguments.trials,
            "winners": len(filled.problems),
            "mib": round(size / 2**20),
            "fill_s": round(filled.seconds, 1),
        },
        **loads,
        f"one of {arguments.winners} winners changed": changed,
    }
    tell(result, arguments.out)


if __name__ == "__main__":
    main()
