"""The process that talks to Ray: ``python -m service.fleet.watcher``, a supervised child of the service.

NOTE: it is a process of its own since Ray ends a process that loses its cluster, and hangs calls at times.
The service then starts another one, as it does with a device worker.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import re
import time
from typing import Any

from service.fleet import cluster
from tilewright import __version__
from tuner.workers.frames import Frame
from tuner.workers.server import serve

_ANSWER_S = 0.2  # which a look waits for the devices, all together
_ASK_S = 0.9  # from the answer of a device to the next question
_LATE_S = 10.0
_JOINS_S = 30.0  # within which a node that joins is looked at more often
_SILENT_S = 10.0  # after which a node is probed whose devices have not answered yet
_AGAIN_S = 5.0  # after which a node or a device that failed is tried anew
_PLACING = "it waits for Ray to place it"
log = logging.getLogger("tilewright.fleet")


@dataclasses.dataclass(slots=True)
class _Asked:
    """A question to a node or a device that may be under way."""

    ref: Any = None
    since: float = 0.0


@dataclasses.dataclass(slots=True)
class _Device:
    """A device of a node: its actor, the question under way, and what it last told."""

    name: str
    actor: Any
    asked: _Asked = dataclasses.field(default_factory=_Asked)
    state: dict[str, Any] | None = None
    reason: str = _PLACING
    again: float = 0.0


@dataclasses.dataclass(slots=True)
class _Node:
    """A node: its devices, the probe under way, why it is refused, and why its last probe failed.

    NOTE: a device refuses another release by itself. A probe before it would cost a node that joins seconds.
    """

    name: str
    facts: dict[str, Any]
    asked: _Asked = dataclasses.field(default_factory=_Asked)
    joined: float = dataclasses.field(default_factory=time.monotonic)
    devices: list[_Device] = dataclasses.field(default_factory=list)
    probed: bool = False
    refused: str | None = None
    probe_error: str | None = None
    again: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether it has this release, as far as is known."""
        return not self.refused and (self.probed or any(one.state for one in self.devices))

    @property
    def complaint(self) -> str | None:
        """What to mend at it, in a sentence."""
        return self.refused or (None if self.accepted else self.probe_error)

    @property
    def due(self) -> bool:
        """Whether to probe the node. An accepted node is not probed. Another one is if the time of its next
        probe has come, or if one of its devices failed or is silent and the last probe did not fail."""
        failed = not self.probe_error and any(one.reason != _PLACING for one in self.devices)
        return not self.accepted and (failed or time.monotonic() > self.again)

    @property
    def compiles(self) -> bool:
        """Whether it compiles for the devices of all nodes once it is accepted."""
        return cluster.COMPILES in self.facts["Resources"] and self.cpus > 0

    @property
    def cpus(self) -> int:
        """The CPUs of the node that Ray may use."""
        return int(self.facts["Resources"].get("CPU", 0))


class Watcher:
    """Keeps an actor for each device of a cluster: every GPU of a node. A node without a GPU is a host device
    if it has CPUs and does not compile for others."""

    def __init__(self, address: str, namespace: str) -> None:
        self._ray = cluster.join(address, namespace)
        self._given: dict[str, Any] = {}
        self._nodes: dict[str, _Node] = {}

    def greeting(self) -> dict[str, Any]:
        """The version of Ray."""
        return {"ray": self._ray.__version__}

    def handle(self, request: Frame) -> Frame:
        """The devices, and the nodes that were refused; cancels jobs and releases devices on the way."""
        self._given = request.header["settings"]
        found = {one["NodeID"]: one for one in self._ray.nodes() if one["Alive"]}
        for node_id in self._nodes.keys() - found.keys():
            del self._nodes[node_id]
        for node_id in found.keys() - self._nodes.keys():
            self._nodes[node_id] = self._join(node_id, found[node_id])
        for node_id, node in self._nodes.items():
            self._probed(node_id, node)
        devices = [device for node in self._nodes.values() if node.accepted for device in node.devices]
        for job_id in request.header["cancel"]:
            self._cancel(devices, job_id)
        for device in devices:
            if device.name in request.header["release"]:
                device.actor.release.remote()
        self._ask([device for node in self._nodes.values() for device in node.devices])
        compilers = [node.name for node in self._nodes.values() if node.accepted and node.compiles]
        states = [{"name": one.name, "state": one.state, "reason": one.reason} for one in devices]
        refused = [node.complaint for node in self._nodes.values() if node.complaint]
        joining = any(time.monotonic() - node.joined < _JOINS_S for node in self._nodes.values())
        found_now = {"devices": states, "refused": refused, "compilers": compilers}
        return Frame({"kind": "ok", **found_now, "joining": joining})

    def _join(self, node_id: str, facts: dict[str, Any]) -> _Node:
        name = re.sub("[^A-Za-z0-9._-]", "-", facts["NodeName"])[:50]
        if name in {node.name for node in self._nodes.values()}:
            name = f"{name}-{node_id[:6]}"
        node = _Node(name, facts)
        node.devices = self._devices(node_id, node)
        if node.devices:
            node.again = node.joined + _SILENT_S
        return node

    def _devices(self, node_id: str, node: _Node) -> list[_Device]:
        resources = node.facts["Resources"]
        hosts = 0 if node.compiles else node.cpus
        names = [f"cuda:{index}" for index in range(int(resources.get("GPU", 0)))] or ["host"][:hosts]
        return [_Device(f"{node.name}/{name}", self._place(node_id, name, len(names))) for name in names]

    def _probe(self, node_id: str) -> _Asked:
        task = self._ray.remote(cluster.probe())
        ref = task.options(num_cpus=0, max_retries=0, scheduling_strategy=self._on(node_id)).remote()
        return _Asked(ref, time.monotonic())

    def _on(self, node_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id, soft=False)

    def _probed(self, node_id: str, node: _Node) -> None:
        """Take up or refuse a node whose probe answered; probe one that is due."""
        if node.asked.ref is None:
            if node.due:
                node.asked = self._probe(node_id)
            return
        ready, _ = self._ray.wait([node.asked.ref], timeout=0)
        if not ready:
            return
        node.asked.ref, node.again = None, time.monotonic() + _AGAIN_S
        try:
            node.refused, node.probe_error = cluster.why_refused(node.name, self._ray.get(ready[0])), None
        except Exception as error:  # NOTE: any error of a foreign machine is told, and tried again
            node.probe_error = (
                f"node {node.name} could not be probed ({type(error).__name__}); try its 'ray status'"
            )
            return
        node.probed = not node.refused
        if node.refused:
            for device in node.devices:
                self._ray.kill(device.actor, no_restart=True)
            node.devices = []
        elif not node.devices:
            node.devices = self._devices(node_id, node)

    def _place(self, node_id: str, device: str, devices_of_node: int) -> Any:
        """The actor of a device, the same one for all services of a database; Ray starts it where it is not.

        NOTE: Ray shows an actor with ``num_gpus=1`` its own GPU alone, as ``cuda:0``.
        """
        from service.fleet.actor import DeviceActor

        kind = device.partition(":")[0]
        options = {
            "name": f"{device}@{node_id} {__version__}",
            "get_if_exists": True,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "max_concurrency": 4,
            "num_cpus": 0 if kind == "cuda" else 1,
            "num_gpus": 1 if kind == "cuda" else 0,
            "scheduling_strategy": self._on(node_id),
        }
        local = "cuda:0" if kind == "cuda" else device
        given = (__version__, self._given, local, devices_of_node)
        return self._ray.remote(DeviceActor).options(**options).remote(*given)

    def _cancel(self, devices: list[_Device], job_id: str) -> None:
        for device in devices:
            if device.state and device.state["health"].get("job_id") == job_id:
                device.actor.cancel.remote(job_id)

    def _ask(self, devices: list[_Device]) -> None:
        now = time.monotonic()
        compilers = self._shares(devices)
        for device in devices:
            if device.asked.ref is None and now > device.again:
                device.asked = _Asked(device.actor.state.remote(compilers), now)
        refs = [device.asked.ref for device in devices if device.asked.ref is not None]
        ready = set(self._ray.wait(refs, num_returns=len(refs), timeout=_ANSWER_S)[0]) if refs else set()
        for device in devices:
            if device.asked.ref in ready:
                self._answered(device)
            elif device.asked.ref is not None and now - device.asked.since > _LATE_S and device.state:
                device.reason = f"it has not answered for {now - device.asked.since:.0f} s"

    def _shares(self, devices: list[_Device]) -> dict[str, int]:
        """For each compile node, its share of CPUs for one device with a job, at least one."""
        at_work = sum(bool(one.state and one.state["health"].get("job_id")) for one in devices)
        nodes = {name: node for name, node in self._nodes.items() if node.accepted and node.compiles}
        return {name: max(1, node.cpus // max(1, at_work)) for name, node in nodes.items()}

    def _answered(self, device: _Device) -> None:
        ref, device.asked.ref = device.asked.ref, None
        try:
            state = self._ray.get(ref)
        except Exception as error:  # NOTE: any error of one device is told, and leaves the others alone
            device.reason, device.again = _why(error), time.monotonic() + 1.0
            if isinstance(error, self._ray.exceptions.ActorDiedError):
                self._replace(device)
            return
        device.state, device.reason, device.again = state, "", time.monotonic() + _ASK_S
        if state["stopped"]:
            self._ray.kill(device.actor, no_restart=True)
            self._replace(device)

    def _replace(self, device: _Device) -> None:
        """Have an actor placed anew that ended for good: its device could not be opened, or it stopped."""
        device.again = time.monotonic() + _AGAIN_S
        for node_id, node in self._nodes.items():
            if device in node.devices:
                name = device.name.rpartition("/")[2]
                device.actor = self._place(node_id, name, len(node.devices))


def _why(error: Exception) -> str:
    """What an actor said last: the message of its own error without the class, else Ray's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return re.sub(r"^[\w.]*(Error|Unavailable|NoDatabase): ", "", last)[:300]


def main() -> None:
    """Answer the service until it closes its end."""
    parser = argparse.ArgumentParser(description="Watches a Ray cluster; started by the service.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--namespace", required=True, help="of the actors of one database")
    parser.add_argument("--pipes", required=True, help="file descriptors READ,WRITE")
    arguments = parser.parse_args()
    serve(arguments.pipes, lambda: Watcher(arguments.address, arguments.namespace))


if __name__ == "__main__":
    main()
