"""A large import into a running service: its memory, how long others wait to write, and lookups meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx2
from api_server import Server, admin_key, opened_database
from large_export import large_export
from store_samples import HOST_CLASS, artifact, best, problem

from tilewright.http.calls import NDJSON
from tuner.store import best as winners
from tuner.store import entities

LOOKUPS_A_SECOND = 100
JOB = "b" * 32
_ROWS = range(64, 72)
_spawn = multiprocessing.get_context("spawn")


def send(server: Server, key: str, body: bytes) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": NDJSON}
    return httpx2.post(f"{server.url}/trials", content=body, headers=headers, timeout=600)


class Writer:
    """Takes the database's lock again and again, and notes how long it waited at most."""

    def __init__(self, server: Server) -> None:
        self._path = server.folder / "tilewright.db"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as connection:
            while not self._stopped.wait(0.02):
                started = time.monotonic()
                connection.execute("BEGIN IMMEDIATE")
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                connection.execute("ROLLBACK")


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What an import took.

    Attributes:
        trials: how many entered.
        held_s: the longest that another writer waited.
        grown_bytes: by how much the service's memory grew at most.
        lookup_s: what each lookup took that was asked meanwhile, from the time at which it was due.
    """

    key: str
    body: bytes
    trials: int
    seconds: float
    held_s: float
    grown_bytes: int
    lookup_s: list[float]


def measure(server: Server, size: int) -> Measured:
    """Import so many bytes while another process writes and one more looks winners up."""
    with opened_database(server) as store, store.begin() as session:
        entities.put_artifact(session, artifact())
        for m in _ROWS:
            winners.put(session, best(problem(m)))
    key, body = admin_key(server), large_export(JOB, size)
    with _lookups(server.url, key) as costs, Writer(server) as writer:
        before, started = server.resident_bytes(), time.monotonic()
        answer = send(server, key, body)
        seconds = time.monotonic() - started
        grown = server.resident_bytes("VmHWM:") - before
    assert answer.status_code == 200, answer.text
    added = answer.json()["added"]["trials"]
    assert added == body.count(b"\n") - 1
    return Measured(key, body, added, seconds, writer.longest_s, grown, costs)


@contextlib.contextmanager
def _lookups(url: str, key: str) -> Iterator[list[float]]:
    """A process that looks up; the list is filled at the end."""
    costs, answers, stopped = list[float](), _spawn.SimpleQueue(), _spawn.Event()
    process = _spawn.Process(target=_look_up, args=(url, key, stopped, answers))
    process.start()
    answers.get()  # once it has started
    try:
        yield costs
    finally:
        stopped.set()
        codes, taken = answers.get()
        process.join()
        assert codes == {200}, "a lookup failed"
        costs += taken


def _look_up(url: str, key: str, stopped: Any, answers: Any) -> None:
    of = {"device_class": HOST_CLASS, "n": 64, "k": 64, "dtype": "float32", "layout": "nn"}
    asked = [f"/best-config?{urlencode(of | {'m': m})}" for m in _ROWS]
    costs = list[float]()
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0) as http:
        codes = {http.get(path).status_code for path in asked}
        answers.put("ready")
        due = time.monotonic()
        while not stopped.is_set():
            time.sleep(max(0.0, due - time.monotonic()))
            codes.add(http.get(asked[len(costs) % len(asked)]).status_code)
            costs.append(time.monotonic() - due)
            due += 1 / LOOKUPS_A_SECOND
    answers.put((codes, costs))
