"""One server for all tests of these folders, and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from api_server import SMALL_LIMITS, TUNED, Server, finish, start

from tilewright import Client, GemmProblem, wire


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("service")
    empty = f"sqlite:///{folder / 'tilewright.db'}"
    # NOTE: a quick answer that is asked for again would start a hundred trials behind the tests that follow.
    running = start(folder, database_url=empty, retune_stale=False, **SMALL_LIMITS)
    yield running
    finish(running)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, timeout=60.0) as connected:
        yield connected


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60.0) as plain:
        yield plain


@pytest.fixture(scope="session")
def tuned(client: Client) -> wire.JobView:
    """A finished job for ``TUNED``."""
    return client.tune(TUNED, max_trials=4, seed=1)


@pytest.fixture
def long_job(client: Client) -> Iterator[wire.JobView]:
    """A job that runs until it is cancelled, which happens at the end of the test."""
    job = client.tune(GemmProblem(72, 64, 64, "float64", "nn"), max_trials=5000, wait=False)
    yield job
    client.cancel(job.id)
    client.wait(job.id)
