"""Compiling on a node of its own: where it happens, how kernels travel, and what its loss costs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: 'make test-fleet' installs it")

import api_server
import fleet_cluster

from service.fleet.actor import DeviceActor
from tilewright import Client, GemmProblem
from tilewright.errors import DeviceUnavailable
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Trial
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.trials import JobRecorder

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
TRIALS = 8


class Lab:
    """A cluster with a device on node ``d`` and compilers on node ``c``, each with a cache of its own."""

    def __init__(self, fleet: fleet_cluster.Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.caches = {name: folder / f"cache-{name}" for name in "cd"}
        self.compiler = self._add(fleet, "c", resources={"compile": 1})
        self.server = fleet.serve()
        self.client = Client(self.server.url, timeout=60.0)
        self.store = Store.open(f"sqlite:///{folder / 'fleet.db'}")
        wait_for(lambda: "node c compiles" in self.server.log())
        self._add(fleet, "d")
        wait_for(lambda: bool(self.client.devices()))

    def _add(self, fleet: fleet_cluster.Fleet, name: str, **given: Any) -> Any:
        return fleet.add(name, TILEWRIGHT_CACHE_DIR=str(self.caches[name]), **given)

    def close(self) -> None:
        """Stop the service; the cluster is the caller's."""
        self.client.close()
        self.store.close()
        api_server.finish(self.server)

    def tune(self, seed: int, trials: int = TRIALS) -> str:
        """Start a job."""
        return self.client.tune(PROBLEM, max_trials=trials, seed=seed, wait=False).id

    def ended(self, job_id: str) -> bool:
        """Whether it did, well."""
        with self.store.read() as session:
            job = jobs.known(session, job_id)
        assert job.error is None
        return job.status is JobStatus.SUCCEEDED

    def trials(self, job_id: str) -> list[Trial]:
        """Those that are committed."""
        return JobRecorder(self.store, job_id).trials()

    def kept(self, node: str) -> dict[str, int]:
        """The names in a node's artifact cache, each with the file that it is: another one after a second
        write."""
        return {path.name: path.stat().st_ino for path in self.caches[node].glob("??/*")}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_cluster.running(folder) as fleet, contextlib.closing(Lab(fleet, folder)) as made:
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_kernels_are_compiled_on_the_node_for_it_and_travel_once(lab: Lab) -> None:
    first = lab.tune(seed=1)
    wait_for(lambda: lab.ended(first))
    digests = {trial.artifact for trial in lab.trials(first) if trial.artifact}
    there, here = lab.kept("c"), lab.kept("d")
    assert len(digests) > 1
    assert digests <= here.keys(), "kernels travel by digest"
    assert not here.keys() & there.keys(), "built ones have another name: none was built on the device's node"
    assert len(there) >= len(digests)
    again = lab.tune(seed=1)
    wait_for(lambda: lab.ended(again))
    # NOTE: the first configs are the same ones; the times decide about the others.
    assert digests & {trial.artifact for trial in lab.trials(again) if trial.artifact}
    assert here.items() <= lab.kept("d").items(), "nothing travelled twice"


def test_a_compile_node_that_dies_costs_no_trial(lab: Lab) -> None:
    job_id = lab.tune(seed=2, trials=24)
    wait_for(lambda: len(lab.trials(job_id)) >= 3)
    raylet = lab.compiler.all_processes["raylet"][0].process
    os.kill(raylet.pid, signal.SIGKILL)
    wait_for(lambda: lab.ended(job_id))
    trials = lab.trials(job_id)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len({trial.config for trial in trials}) == len(trials)
    assert [trial.message for trial in trials if trial.outcome in ("compile_error", "timeout")] == []
    digests = {trial.artifact for trial in trials if trial.artifact}
    assert not digests <= lab.kept("d").keys(), "the last ones were built on the device's node"


@pytest.mark.parametrize("given", [{}, {"resources": {"compile": 1}}])
def test_a_node_of_another_release_neither_tunes_nor_compiles(
    lab: Lab, given: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "tilewright").mkdir()
    (tmp_path / "tilewright/__init__.py").write_text('__version__ = "0.0.9"\n')
    name = f"old{len(given)}"
    lab.fleet.add(name, PYTHONPATH=str(tmp_path), **given)
    wait_for(lambda: f"node {name} has tilewright 0.0.9; install" in lab.server.log())
    assert name not in "".join(device.name for device in lab.client.devices())
    assert f"node {name} compiles" not in lab.server.log()


def test_a_device_refuses_another_release() -> None:
    with pytest.raises(DeviceUnavailable, match=r"this node has tilewright .*; install 0\.0\.9 here"):
        DeviceActor("0.0.9", {}, "host", 1)
