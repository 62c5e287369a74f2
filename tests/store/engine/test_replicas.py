"""Two services on one PostgreSQL: a job of one is followed and cancelled through the other."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import Server, finish, start
from databases import Databases, migrate

from tilewright import Client, GemmProblem
from tilewright.wire import JobView

PROBLEM = GemmProblem(72, 64, 64, "float64", "nn")
OTHER = GemmProblem(48, 64, 64, "float64", "nn")
PATIENCE_S = 60.0


@pytest.fixture
def servers(postgresql_databases: Databases, tmp_path: Path) -> Iterator[list[Server]]:
    """Of one machine: the first one tunes, the second one waits for the device."""
    settings = {"database_url": postgresql_databases.copy(migrate), "lock_dir": tmp_path, "lease_s": 3}
    running = list[Server]()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        running.append(start(tmp_path / name, **settings))
    yield running
    for server in running:
        finish(server)


@dataclasses.dataclass
class Followed:
    """What a client saw of a job."""

    seen: list[JobView] = dataclasses.field(default_factory=list)
    ended: list[JobView] = dataclasses.field(default_factory=list)

    def begin(self, client: Client, job_id: str) -> threading.Thread:
        def run() -> None:
            self.ended.append(client.wait(job_id, on_progress=self.seen.append))  # type: ignore[arg-type]

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.mark.long
def test_a_job_is_followed_and_cancelled_and_outlives_its_service_through_the_other(
    servers: list[Server],
) -> None:
    with Client(servers[0].url, timeout=60.0) as one, Client(servers[1].url, timeout=60.0) as two:
        (device,) = two.devices()
        assert "in use by another service" in str(device)
        job = one.tune(PROBLEM, max_trials=5000, wait=False)
        followed = Followed()
        thread = followed.begin(two, job.id)
        deadline = time.monotonic() + PATIENCE_S
        while not followed.seen:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert two.cancel(job.id).cancel_requested
        thread.join(PATIENCE_S)
        assert [ended.status for ended in followed.ended] == ["cancelled"]
        assert one.job(job.id).status == "cancelled"
        job = one.tune(OTHER, max_trials=6, wait=False)
        servers[0].process.kill()
        assert two.wait(job.id).status == "succeeded"
        assert two.job(job.id).best is not None
