"""Compiling on a node of its own: where it happens, how kernels travel, and what its loss costs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_samples as host
import pytest

pytest.importorskip("ray", reason="Ray is not installed: 'make test-fleet' installs it")

import api_server
import fleet_cluster
import ray

from service.fleet.actor import DeviceActor
from service.fleet.compiling import FleetBuilder
from service.settings import Settings
from tilewright import Client, GemmProblem
from tilewright.errors import ArtifactError, DeviceUnavailable
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Trial
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.trials import JobRecorder
from tuner.workers.builder import Compiled, compile_request

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
    assert {trial.artifact for trial in lab.trials(again) if trial.artifact} == digests
    assert lab.kept("d") == here, "nothing travelled twice"


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


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[FleetBuilder]:
    settings = Settings(cache_dir=tmp_path, compile_processes=1)
    with contextlib.closing(FleetBuilder(settings)) as made:
        made.nodes = ("a", "b")
        yield made


def compiled(builder: FleetBuilder) -> Compiled:
    return builder.submit("host", host.config_of(), PROBLEM, host.DEVICE).result(60.0)


def test_nodes_that_fail_are_avoided_for_a_while(
    builder: FleetBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(node: str, *_: object) -> None:
        asked.append(node)
        raise ray.exceptions.RayError("planted")

    monkeypatch.setattr(builder, "_on", fail)
    assert [compiled(builder).outcome for _ in range(2)] == ["ok", "ok"], "compiled on this node"
    assert sorted(asked) == ["a", "b"]


def test_a_kernel_of_other_sources_is_refused(builder: FleetBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    own = host.artifact_of(host.config_of(), PROBLEM)
    other = dataclasses.replace(own, source_digest="0" * 64)
    told = {one.digest: one for one in (own, other)}
    monkeypatch.setattr(ray, "get", lambda ref: told[ref].to_bytes())
    request = compile_request("host", host.config_of(), PROBLEM, host.DEVICE)
    assert builder._fetched(own.digest, own.digest, request) == own
    with pytest.raises(ArtifactError, match="install the same release there"):
        builder._fetched(other.digest, other.digest, request)
