"""Cancelling all jobs of a filter: those that it chooses and no other; by clients and the command line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from api_server import Server, admin_key, environment, finish, opened_database, start
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import AsyncClient, Client, GemmProblem
from tilewright.errors import InvalidProblem
from tuner.store.access import keys


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = start(tmp_path)
    yield running
    finish(running)


def queue(client: Client, *extents: int, dtype: str = "float64", trials: int = 5000) -> list[str]:
    problems = [GemmProblem(m, 64, 64, dtype, "nn") for m in extents]
    return [client.tune(problem, max_trials=trials, wait=False).id for problem in problems]


def live(client: Client) -> set[str]:
    return {job.id for job in client.jobs(limit=1000).items if not (job.status.final or job.cancel_requested)}


def test_a_filter_cancels_what_it_chooses_once(server: Server) -> None:
    with Client(server.url, timeout=60.0) as client:
        (running,) = queue(client, 72)
        while client.job(running).status != "running":
            time.sleep(0.05)
        a, b, c, d = queue(client, 8, 9, 10, 11)
        (e,) = queue(client, 8, dtype="float32")
        assert client.cancel_jobs(m=8, dtype="float32").jobs == 1
        assert live(client) == {running, a, b, c, d}
        assert client.cancel_jobs(m=8, n=64).jobs == 1
        assert client.cancel_jobs(m=8, n=64).jobs == 0
        assert live(client) == {running, b, c, d}
        assert client.job(a).status == client.job(e).status == "cancelled"

        async def rest() -> int:
            async with AsyncClient(server.url, timeout=60.0) as other:
                return (await other.cancel_jobs(status="queued")).jobs

        assert asyncio.run(rest()) == 3
        assert live(client) == {running}
        command = ["jobs", "cancel", "--mine", "--json"]
        result = CliRunner().invoke(app, command, env=environment(server.folder, url=server.url))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["jobs"] == 1
        assert client.cancel_jobs(mine=True).jobs == 0
        refused = CliRunner().invoke(app, command[:2], env=environment(server.folder, url=server.url))
        assert refused.exit_code == 2
        with pytest.raises(InvalidProblem, match="say which jobs"):
            client.cancel_jobs()
    with httpx2.Client(base_url=server.url) as http:
        assert http.delete("/jobs").status_code == 422


def test_mine_are_those_of_my_key(server: Server) -> None:
    admin = admin_key(server)
    with opened_database(server) as store, store.begin() as session:
        _, key = keys.create(session, "mine", frozenset({"tune"}))
    with (
        Client(server.url, timeout=60.0, key=admin) as other,
        Client(server.url, timeout=60.0, key=key) as me,
    ):
        theirs = queue(other, 20, 21)
        mine = queue(me, 30, 31, 32)
        assert live(me) == {*theirs, *mine}
        assert me.cancel_jobs(mine=True).jobs == 3
        assert live(me) == set(theirs)
        assert other.cancel_jobs(mine=True).jobs == 2
