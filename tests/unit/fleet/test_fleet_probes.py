"""What the probe of a node costs its actors, and how compile nodes are shared; there is no cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.fleet import cluster, watcher
from service.fleet.watcher import Watcher
from tilewright import __version__
from tuner.workers.frames import Frame


class Actor:
    """A device's, which other services share; ``told`` is its state, None while it does not answer."""

    def __init__(self) -> None:
        self.told: dict[str, Any] | None = None
        self.nodes: dict[str, int] = {}
        self.state = self

    def remote(self, nodes: dict[str, int]) -> Actor:
        self.nodes = nodes
        return self


class FakeRay:
    """Nodes with one device each, and a probe that answers as ``probe`` does."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.found = [
            {"NodeID": f"id{index}", "NodeName": f"n{index}", "Alive": True, "Resources": given}
            for index, given in enumerate(resources)
        ]
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []
        self.probes = 0
        self.probe: Callable[[], dict[str, str]] = lambda: {"version": __version__}
        self.exceptions = type("exceptions", (), {"ActorDiedError": KeyError})

    def nodes(self) -> list[dict[str, Any]]:
        return self.found

    def remote(self, _task: object) -> FakeRay:
        return self

    def options(self, **_: object) -> Any:
        self.probes += 1
        return type("task", (), {"remote": lambda _self: "probe"})()

    def wait(self, refs: list[Any], **_: object) -> tuple[list[Any], list[Any]]:
        ready = [one for one in refs if one == "probe" or one.told]
        return ready, [one for one in refs if one not in ready]

    def get(self, ref: Any) -> Any:
        return self.probe() if ref == "probe" else ref.told

    def kill(self, actor: Actor, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay], Watcher]:
    """Makes a watcher of a cluster."""

    def started(ray: FakeRay) -> Watcher:
        def place(*_: object) -> Actor:
            ray.actors.append(Actor())
            return ray.actors[-1]

        monkeypatch.setattr(cluster, "join", lambda *_: ray)
        monkeypatch.setattr(Watcher, "_place", place)
        monkeypatch.setattr(Watcher, "_on", lambda *_: None)
        monkeypatch.setattr(watcher, "_SILENT_S", -1.0)
        monkeypatch.setattr(watcher, "_ASK_S", -1.0)
        return Watcher("127.0.0.1:1", "test")

    return started


def look(at: Watcher, times: int = 3) -> dict[str, Any]:
    """What it tells after so many looks."""
    asked = Frame({"settings": {}, "cancel": [], "release": []})
    return [at.handle(asked).header for _ in range(times)][-1]


def fail() -> dict[str, str]:
    raise OSError("planted")


def state(job_id: str | None = None) -> dict[str, Any]:
    return {"health": {"job_id": job_id}, "stopped": False}


def test_a_probe_that_fails_kills_nothing_and_is_tried_again(watching: Any) -> None:
    ray = FakeRay({"CPU": 1})
    ray.probe = fail
    made = watching(ray)
    assert "n0 could not be probed (OSError)" in look(made)["refused"][0]
    assert (ray.killed, ray.probes) == ([], 1), "the next probe waits"
    ray.probe = lambda: {"version": __version__}
    [node] = made._nodes.values()
    node.again = 0.0
    told = look(made)
    assert (told["refused"], len(told["devices"]), ray.probes) == ([], 1, 2)
    assert (ray.killed, len(ray.actors)) == ([], 1), "the same actor as before"


def test_a_device_that_answers_needs_no_probe(watching: Any) -> None:
    ray = FakeRay({"CPU": 1})
    ray.probe = fail
    made = watching(ray)
    assert look(made)["devices"] == []
    ray.actors[0].told = state()
    told = look(made)
    assert (told["refused"], [one["name"] for one in told["devices"]]) == ([], ["n0/host"])


def test_a_node_of_another_release_loses_its_actors(watching: Any) -> None:
    ray = FakeRay({"CPU": 1})
    ray.probe = lambda: {"version": "0.0.9"}
    assert "n0 has tilewright 0.0.9; install" in look(watching(ray))["refused"][0]
    assert ray.killed == ray.actors
    assert len(ray.killed) == 1


def test_devices_at_work_share_the_cpus_of_a_compile_node(watching: Any) -> None:
    ray = FakeRay({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, {"CPU": 5, "compile": 1}, {"compile": 1})
    made = watching(ray)
    look(made, times=1)
    for jobs, share in ((("j1", "j2", None), 2), (("j1", "j2", "j3"), 1), (("j1", None, None), 5)):
        for actor, job_id in zip(ray.actors, jobs, strict=True):
            actor.told = state(job_id)
        look(made)
        assert [one.nodes for one in ray.actors] == [{"id3": share}] * 3, "one without CPUs compiles nothing"
