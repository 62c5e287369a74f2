"""The restore drill: a service is backed up at work and lost, and another one goes on from the backup."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from api_server import TUNED, environment, finish, start
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem, wire


def tilewright(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env=environment(folder))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.long
def test_a_service_goes_on_from_a_backup_of_one_that_was_lost(tmp_path: Path) -> None:
    lost, new, backup = tmp_path / "lost", tmp_path / "new", tmp_path / "backup.db"
    lost.mkdir()
    new.mkdir()
    first = start(lost)
    try:
        with Client(first.url, timeout=60.0) as client:
            client.tune(TUNED, max_trials=4, seed=1)
            here = client.devices()[0].device_class
            best = client.best_config(TUNED, device_class=here)
            running = client.tune(GemmProblem(72, 64, 64, "float64", "nn"), max_trials=8, wait=False)
            deadline = time.monotonic() + 60
            while len(client.trials(running.id).items) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            tilewright(lost, "backup", str(backup))
            recorded = client.trials(running.id).items
    finally:
        first.process.kill()
        finish(first)
    tilewright(new, "restore", str(backup))
    assert tilewright(new, "db", "check") == "nothing is wrong\n"
    second = start(new, cache_dir=new / "artifacts")
    try:
        with Client(second.url, timeout=60.0) as client:
            assert client.best_config(TUNED, device_class=here) == best
            a, b = np.ones((TUNED.m, TUNED.k), "float32"), np.ones((TUNED.k, TUNED.n), "float32")
            assert np.array_equal(client.gemm(a, b).d, np.full((TUNED.m, TUNED.n), TUNED.k, "float32"))
            resumed = client.wait(running.id)
            assert resumed.status is wire.JobStatus.SUCCEEDED
            assert client.trials(running.id).items[:3] == recorded[:3]
    finally:
        finish(second)
