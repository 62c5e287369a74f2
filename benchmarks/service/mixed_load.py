"""Callers of a service, visitors who hang up, and a small job every minute, each in a thread."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from benchmarks.service.lookup_fill import CLASS, Filled, improve
from benchmarks.service.lookup_load import get, post
from benchmarks.service.mixed_requests import Request, every_kind, request

CALLERS, RUSH = 4, 24
CHANGE_S, JOB_S = 30.0, 60.0
JOB_ENDS_S = 300.0  # the service tunes results of quick jobs again in full, and a job waits for that
SHAPES = [(m, n, 64) for m in (16, 32, 48, 64) for n in (32, 64)]  # of jobs, again and again
_CURRENT = f"/config-sets/current?device_class={CLASS}"
_BETWEEN_S = 0.1  # from one visit to the next
_MOST_SHOWN = 50


class Asked:
    """What was asked and answered so far; threads share it."""

    def __init__(self) -> None:
        self.unexpected: list[str] = []  # the first of them
        self.unexpected_count = 0
        self._lock = threading.Lock()
        self._totals, self._since, self._lookups = Counter[str](), 0, list[float]()

    def note(self, name: str, told: object, milliseconds: float = 0.0, *, expected: bool) -> None:
        """Count an answer, or what happened to a request without one."""
        with self._lock:
            self._totals[f"{name}: {told}"] += 1
            self._since += 1
            if name.startswith("lookup"):
                self._lookups.append(milliseconds)
            if not expected:
                self.unexpected_count += 1
                self.unexpected = [*self.unexpected, f"{time.strftime('%X')} {name}: {told}"][:_MOST_SHOWN]

    def totals(self) -> dict[str, int]:
        """How many there were of each."""
        with self._lock:
            return dict(sorted(self._totals.items()))

    def since_last(self) -> dict[str, Any]:
        """What came since this was called before, and how long lookups took."""
        with self._lock:
            ordered, count = sorted(self._lookups), self._since
            self._lookups, self._since = [], 0
        places = {"p50": len(ordered) // 2, "p99": int(0.99 * len(ordered))}
        spread = {name: round(ordered[place], 2) for name, place in places.items() if ordered}
        return {"requests": count, "unexpected": self.unexpected_count, "lookup_ms": spread}


class Load:
    """The load, from ``with`` to its end; ``rate`` is the requests a second of all callers."""

    def __init__(self, url: str, database_url: str, filled: Filled, asked: Asked, rate: float) -> None:
        self._url, self._database_url, self._filled, self._asked = url, database_url, filled, asked
        self._stop, self._pause_s = threading.Event(), CALLERS / rate
        work: list[Callable[[httpx2.Client], None]] = [self._call] * CALLERS
        work += [self._visit, self._change, self._tune]
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in work]

    def __enter__(self) -> Self:
        with self._client() as http:
            self._host = http.get("/devices").json()["items"][0]["device_class"]
            self._job = http.get("/jobs", params={"limit": 1}).json()["items"][0]["id"]
        self._rush()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _rush(self) -> None:
        """Ask everything from many at once, so that later moments of much load add no connection to the
        database and no shared memory to those that the service keeps."""

        def ask(number: int) -> None:
            with self._client() as http:
                for one in every_kind(self._filled, random.Random(number), self._host, self._job):
                    self._try(http, one._replace(wanted=(*one.wanted, 503)))

        with ThreadPoolExecutor(RUSH) as callers:
            list(callers.map(ask, range(RUSH)))

    def _client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self._url, timeout=60.0)

    def _run(self, work: Callable[[httpx2.Client], None]) -> None:
        try:
            with self._client() as http:
                work(http)
        except Exception as error:  # NOTE: else the load would be less from here on, and nobody told
            self._asked.note(work.__name__, f"ended by {error!r}", expected=False)

    def _send(self, http: httpx2.Client, one: Request) -> httpx2.Response:
        began = time.perf_counter()
        answer = http.request(one.method, one.path, **one.options)
        cost, expected = 1e3 * (time.perf_counter() - began), answer.status_code in one.wanted
        told = answer.status_code if expected else f"{answer.status_code} {answer.text[:200]}"
        self._asked.note(one.name, told, cost, expected=expected)
        return answer

    def _try(self, http: httpx2.Client, one: Request) -> httpx2.Response | None:
        """The answer; None, and a note, where there is none."""
        try:
            return self._send(http, one)
        except httpx2.TransportError as error:
            self._asked.note(one.name, repr(error), expected=False)
            return None

    def _call(self, http: httpx2.Client) -> None:
        chance = random.Random()
        due = time.monotonic() + chance.random() * self._pause_s
        while True:
            for one in every_kind(self._filled, chance, self._host, self._job):
                due = max(due + self._pause_s, time.monotonic() - 1.0)
                if self._stop.wait(max(0.0, due - time.monotonic())):
                    return
                self._try(http, one)

    def _change(self, http: httpx2.Client) -> None:
        """Fetch the config set, ask whether it changed, have a winner beaten."""
        known = ""
        for problem in itertools.cycle(self._filled.problems):
            # NOTE: 304 once every winner was beaten.
            fetch = request("new config set", f"GET {_CURRENT}", 200, 304, headers={"If-None-Match": known})
            known = self._send(http, fetch).headers.get("ETag", known)
            self._send(
                http, request("known config set", f"GET {_CURRENT}", 304, headers={"If-None-Match": known})
            )
            if self._stop.wait(CHANGE_S):
                return
            improve(self._database_url, problem)

    def _tune(self, http: httpx2.Client) -> None:
        """A job a minute; every third is cancelled."""
        for number, (m, n, k) in enumerate(itertools.cycle(SHAPES)):
            began = time.monotonic()
            problem = {"m": m, "n": n, "k": k, "dtype": "float32", "layout": "nn"}
            body = {**problem, "max_trials": 6, "level": "quick"}
            self._job = self._send(http, request("tune", "POST /tune", 202, json=body)).json()["id"]
            self._end_job(http, cancel=number % 3 == 2)
            if self._stop.wait(max(1.0, JOB_S - (time.monotonic() - began))):
                return

    def _end_job(self, http: httpx2.Client, cancel: bool) -> None:
        if cancel and not self._stop.wait(1.0):
            self._send(http, request("cancel", f"DELETE /jobs/{self._job}", 202))
        until, status = time.monotonic() + JOB_ENDS_S, "queued"
        while status in ("queued", "running"):
            if self._stop.wait(1.0):
                return
            if time.monotonic() > until:
                status = f"{status} after {JOB_ENDS_S:.0f} s"
                break
            status = self._send(http, request("job", f"GET /jobs/{self._job}")).json()["status"]
        self._asked.note(
            "end of a job", status, expected=status == "succeeded" or (cancel and status == "cancelled")
        )

    def _visit(self, _: httpx2.Client) -> None:
        """Follow a job for a while and hang up; hang up in the middle of requests and of answers."""
        chance = random.Random()
        while True:
            lookup = {"device_class": CLASS, "problems": [{"m": 64, "n": 64, "k": 64}]}
            whole = post("/best-config/lookup", lookup)
            visits: list[tuple[bytes, int, float]] = [  # what is sent, most bytes that are read, seconds
                (get("/trials"), 2**16, 0.5),
                (get("/trials?format=t4"), 1, 0.0),
                (get(_CURRENT), 1, 0.0),
                (get("/view/results"), 0, 0.0),
                (whole, 0, 0.0),
                (whole[:-9], 0, 1.0),
                (b"GET /best", 0, 1.0),
                (b"", 0, 1.0),
                (b"\x16\x03\x01 no HTTP\r\n\r\n", 2**16, 1.0),
                (get(f"/jobs/{self._job}/events"), 2**20, chance.uniform(1, 15)),
                (get(f"/view/jobs/{self._job}/live?after=-1"), 2**20, chance.uniform(1, 15)),
            ]
            for sent, most, seconds in visits:
                self._visit_once(sent, most, seconds, reset=chance.random() < 0.5)
                if self._stop.wait(_BETWEEN_S):
                    return

    def _visit_once(self, sent: bytes, most: int, seconds: float, reset: bool) -> None:
        try:
            self._hang_up(sent, most, seconds, reset)
        except ConnectionRefusedError as error:
            self._asked.note("visit", repr(error), expected=False)
        except OSError:  # NOTE: the service may hang up first
            self._asked.note("visit", "the service hung up", expected=True)
        else:
            self._asked.note("visit", "hung up", expected=True)

    def _hang_up(self, sent: bytes, most: int, seconds: float, reset: bool) -> None:
        address, until = urlsplit(self._url), time.monotonic() + seconds
        with closing(socket.create_connection((address.hostname, address.port), 5.0)) as connection:
            if reset:  # the service gets an error instead of an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(sent)
            connection.settimeout(0.5)
            while most > 0:
                with suppress(TimeoutError):
                    part = connection.recv(min(most, 2**16))
                    most -= len(part) or most
                if time.monotonic() > until or self._stop.is_set():
                    break
            self._stop.wait(max(0.0, until - time.monotonic()))
