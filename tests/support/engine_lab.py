"""A device that only knows whether it was closed, and jobs for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import store_samples as samples

from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.records import JobRecord


class FakeBench:
    """A device that only knows whether it was closed, and what interferes with it."""

    spec, driver, set_aside = samples.HOST, "test driver", ""
    used = 0.0

    def __init__(self, name: str) -> None:
        self.name = self.identity = self.known_as = name
        self.closed = threading.Event()
        self.interfering: tuple[str, ...] = ()

    def neighbours(self) -> tuple[str, ...]:
        return self.interfering

    def interference(self) -> tuple[str, ...]:
        return self.interfering

    def look(self) -> None:
        pass

    def come_back(self) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


def submit(store: Store, seed: int = 0) -> str:
    with store.begin() as session:
        return jobs.submit(session, samples.request(seed=seed), samples.HOST)[0].id


def job(store: Store, job_id: str) -> JobRecord:
    with store.read() as session:
        found = jobs.get(session, job_id)
    assert found is not None
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
