"""The load of :mod:`benchmarks.service.soak`: some of everything that callers do to a service."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpx2

from benchmarks.service.lookup_fill import ARCH, CLASS, Filled, improve
from benchmarks.service.lookup_load import get, post
from tilewright import GemmProblem

RATE, CALLERS = 12.0, 4
JOB_S, JOB_ENDS_S = 60.0, 50.0
SHAPES = [(m, n, 64) for m in (16, 32, 48, 64) for n in (32, 64)]
MISSED = 200
SIDE = 48  # of a GEMM
_MOST_SHOWN = 50


class Request(NamedTuple):
    """A request and the statuses that it may be answered with."""

    name: str
    method: str
    path: str
    wanted: frozenset[int]
    options: dict[str, Any]


def request(name: str, call: str, *wanted: int, **options: Any) -> Request:
    """``call`` is ``GET /path``; 200 is wanted unless another status is given."""
    method, _, path = call.partition(" ")
    return Request(name, method, path, frozenset(wanted or {200}), options)


class Asked:
    """What was asked and answered so far; threads share it."""

    def __init__(self) -> None:
        self.unexpected: list[str] = []
        self.unexpected_count = 0
        self._lock = threading.Lock()
        self._totals, self._requests, self._bad = Counter[str](), 0, 0
        self._lookups: list[float] = []

    def note(self, name: str, status: int | str, milliseconds: float, expected: bool) -> None:
        """Count an answer."""
        with self._lock:
            self._totals[f"{name}: {status}"] += 1
            self._requests += 1
            if name.startswith("lookup"):
                self._lookups.append(milliseconds)
            if not expected:
                self._bad += 1
                self.unexpected_count += 1
                self.unexpected = [*self.unexpected, f"{time.strftime('%X')} {name}: {status}"][:_MOST_SHOWN]

    def totals(self) -> dict[str, int]:
        """Answers by request and status."""
        with self._lock:
            return dict(sorted(self._totals.items()))

    def since_last(self) -> dict[str, Any]:
        """What came since this was called before."""
        with self._lock:
            ordered, counts = sorted(self._lookups), {"requests": self._requests, "unexpected": self._bad}
            self._lookups, self._requests, self._bad = [], 0, 0
        places = {"p50": len(ordered) // 2, "p99": int(0.99 * len(ordered))}
        return {
            **counts,
            "lookup_ms": {name: round(ordered[at], 2) for name, at in places.items() if ordered},
        }


def extents(problem: GemmProblem) -> dict[str, int]:
    """The fields of a query that names one of the filled problems."""
    return {"m": problem.m, "n": problem.n, "k": problem.k}


def asks(filled: Filled, chance: random.Random, host: str, job: str) -> Iterator[Request]:
    """One request of every kind; those that clients send most come more often."""
    exact = {"arch": ARCH, **extents(chance.choice(filled.problems))}
    some = [extents(one) for one in chance.choices(filled.problems, k=50)]
    missed = {"m": 8 * chance.randrange(1, MISSED), "n": 136, "k": 72, "dtype": "float16", "layout": "nt"}
    product = {"m": SIDE, "n": SIDE, "k": SIDE, "dtype": "float32"}
    raw = {
        "params": product,
        "content": bytes(8 * SIDE * SIDE),
        "headers": {"Content-Type": "application/octet-stream"},
    }
    for one in chance.choices(filled.problems, k=30):
        yield request("lookup exact", "GET /best-config", params=exact | extents(one))
    for one in chance.choices(filled.problems, k=10):
        near = extents(one) | {"m": one.m + chance.randrange(1, 64), "match": "nearest"}
        yield request("lookup nearest", "GET /best-config", params=exact | near)
    for _ in range(2):
        yield request(
            "lookup many", "POST /best-config/lookup", json={"device_class": CLASS, "problems": some}
        )
        yield request("gemm", "POST /gemm", **raw)
    yield request("lookup of a miss", "GET /best-config", 404, params={"arch": ARCH, **missed})
    yield request("lookup on the host", "GET /best-config", params={"device_class": host})
    yield request("misses", "POST /misses", 202, json={"device_class": CLASS, "misses": [missed]})
    yield request("list misses", "GET /misses")
    yield request("jobs", "GET /jobs", params={"limit": chance.choice((5, 50, 200))})
    yield request("job", f"GET /jobs/{job}")
    yield request("trials of a job", f"GET /jobs/{job}/trials")
    yield request(
        "export", "GET /trials", params={"device_class": host, "format": chance.choice(("ndjson", "t4"))}
    )
    yield request("kernel", f"GET /artifacts/{chance.choice(filled.digests)}")
    yield request("explain", "GET /explain", params=exact)
    yield request("metrics", "GET /metrics")
    yield request("ready", "GET /health/ready")
    yield request("devices", "GET /devices")
    views = ("now", "jobs", f"jobs/{job}", "results", "coverage", "report")
    for page in ("/", *(f"/view/{name}" for name in chance.sample(views, 2))):
        yield request("page", f"GET {page}", headers={"Accept": "text/html"})
    yield request(
        "broken JSON", "POST /tune", 422, content=b'{"m": 1', headers={"Content-Type": "application/json"}
    )
    yield request("unknown field", "POST /tune", 422, json={**missed, "colour": "red"})
    yield request("unknown job", f"GET /jobs/{'0' * 32}", 404)
    yield request("unknown path", "GET /nowhere", 404)
    yield request("wrong method", "PUT /tune", 405)
    yield request(
        "long body", "POST /tune", 413, content=b" " * 70_000, headers={"Content-Type": "application/json"}
    )


class Load:
    """Callers, visitors and jobs, each in a thread, from ``with`` to its end."""

    def __init__(self, url: str, database_url: str, filled: Filled, asked: Asked) -> None:
        self._url, self._database_url, self._filled, self._asked = url, database_url, filled, asked
        self._stop, self._job = threading.Event(), ""
        self._threads = [threading.Thread(target=self._call, args=(seed,)) for seed in range(CALLERS)]
        self._threads += [threading.Thread(target=one) for one in (self._visit, self._change)]
        self._tuning = threading.Thread(target=self._tune)

    def __enter__(self) -> Self:
        with self._client() as http:
            self._host = http.get("/devices").json()["items"][0]["device_class"]
            self._job = http.get("/jobs", params={"limit": 1}).json()["items"][0]["id"]
        for thread in (*self._threads, self._tuning):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in (*self._threads, self._tuning):
            thread.join()

    def _client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self._url, timeout=60.0)

    def _send(self, http: httpx2.Client, one: Request) -> httpx2.Response | None:
        began = time.perf_counter()
        try:
            answer = http.request(one.method, one.path, **one.options)
        except httpx2.TransportError as error:
            self._asked.note(one.name, repr(error), 0.0, expected=self._stop.is_set())
            return None
        expected = answer.status_code in one.wanted
        told = answer.status_code if expected else f"{answer.status_code} {answer.text[:200]}"
        self._asked.note(one.name, told, 1e3 * (time.perf_counter() - began), expected)
        return answer

    def _call(self, seed: int) -> None:
        chance, due = random.Random(seed), time.monotonic()
        with self._client() as http:
            while not self._stop.is_set():
                round_ = list(asks(self._filled, chance, self._host, self._job))
                chance.shuffle(round_)
                for one in round_:
                    due = max(due + CALLERS / RATE, time.monotonic() - 1.0)
                    if self._stop.wait(max(0.0, due - time.monotonic())):
                        return
                    self._send(http, one)

    def _change(self) -> None:
        """Have a winner beaten and fetch the config set that this makes, again and again."""
        known = ""
        with self._client() as http:
            for number in itertools.count():
                current = f"GET /config-sets/current?device_class={CLASS}"
                new = self._send(
                    http, request("new config set", current, 200, 304, headers={"If-None-Match": known})
                )
                known = (new.headers.get("ETag") if new is not None else None) or known
                self._send(http, request("known config set", current, 304, headers={"If-None-Match": known}))
                if self._stop.wait(JOB_S / 2):
                    return
                improve(self._database_url, self._filled.problems[number % len(self._filled.problems)])

    def _tune(self) -> None:
        """A job a minute; every third is cancelled."""
        with self._client() as http:
            for number in itertools.count():
                m, n, k = SHAPES[number % len(SHAPES)]
                body = {
                    "m": m,
                    "n": n,
                    "k": k,
                    "dtype": "float32",
                    "layout": "nn",
                    "max_trials": 6,
                    "level": "quick",
                }
                started, answer = (
                    time.monotonic(),
                    self._send(http, request("tune", "POST /tune", 202, json=body)),
                )
                if answer is not None and answer.status_code == 202:
                    self._job = answer.json()["id"]
                    self._follow_job(http, cancel=number % 3 == 2)
                if self._stop.wait(max(1.0, JOB_S - (time.monotonic() - started))):
                    return

    def _follow_job(self, http: httpx2.Client, cancel: bool) -> None:
        if cancel:
            self._stop.wait(1.0)
            self._send(http, request("cancel", f"DELETE /jobs/{self._job}", 202))
        until, status = time.monotonic() + JOB_ENDS_S, ""
        while time.monotonic() < until and not self._stop.wait(1.0):
            answer = self._send(http, request("job", f"GET /jobs/{self._job}"))
            status = answer.json()["status"] if answer is not None else ""
            if status in ("succeeded", "cancelled", "failed"):
                break
        else:
            status = status if self._stop.is_set() else f"{status} after {JOB_ENDS_S} s"
        ended = status == "succeeded" or (cancel and status == "cancelled") or self._stop.is_set()
        self._asked.note("end of a job", status, 0.0, ended)

    def _visit(self) -> None:
        """Follow events and hang up; hang up in the middle of requests and of answers."""
        chance = random.Random(0)
        while not self._stop.is_set():
            live, events = f"/view/jobs/{self._job}/live?after=-1", f"/jobs/{self._job}/events"
            whole = post(
                "/best-config/lookup", {"device_class": CLASS, "problems": [{"m": 64, "n": 64, "k": 64}]}
            )
            visits: list[tuple[bytes, int, float]] = [  # what is sent, bytes that are read, seconds
                (get(events), 2**20, chance.uniform(1, 15)),
                (get(live), 2**20, chance.uniform(1, 15)),
                (get("/trials"), 2**16, 0.5),
                (get("/trials?format=t4"), 1, 0.0),
                (get(f"/config-sets/current?device_class={CLASS}"), 1, 0.0),
                (get("/view/results"), 0, 0.0),
                (whole, 0, 0.0),
                (whole[:-9], 0, 1.0),
                (b"GET /best", 0, 1.0),
                (b"", 0, 1.0),
                (b"\x16\x03\x01 no HTTP\r\n\r\n", 2**16, 1.0),
            ]
            for sent, size, seconds in visits:
                self._asked.note("visit", "", 0.0, expected=True)
                with suppress(OSError):
                    self._hang_up(sent, size, seconds, reset=chance.random() < 0.5)

    def _hang_up(self, sent: bytes, size: int, seconds: float, reset: bool) -> None:
        address, until = urlsplit(self._url), time.monotonic() + seconds
        with closing(socket.create_connection((address.hostname, address.port), 5.0)) as connection:
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(sent)
            connection.settimeout(0.5)
            while size > 0 and not self._stop.is_set():
                with suppress(TimeoutError):
                    part = connection.recv(min(size, 2**16))
                    size -= len(part) or size
                if time.monotonic() > until:
                    break
            self._stop.wait(max(0.0, until - time.monotonic()))
