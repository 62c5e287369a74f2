"""A Ray cluster on this machine, its nodes with folders of their own, and services that use it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import api_server
import pytest

# NOTE: the second keeps every port on loopback, as Ray does on the systems of its name; read at its import.
# The third runs devices at the priority of other processes, which Ray's workers otherwise give way to.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
os.environ |= {"RAY_worker_niceness": "0", **api_server.QUICK_KERNELS}
pytest.importorskip("ray", reason="'make test-fleet' installs Ray")
from ray.cluster_utils import Cluster

_STAND_IN = Path(__file__).parents[1] / "stand_in"
# The environment of devices that compile one kernel and take fixed times.
QUICK_DEVICES = {
    name: os.pathsep.join(filter(None, (str(_STAND_IN), os.environ.get(name))))
    for name in ("PATH", "PYTHONPATH")
}
_SMALL = {"include_dashboard": False, "object_store_memory": 80 * 2**20}


@dataclasses.dataclass
class Fleet:
    """A cluster whose head offers no device."""

    cluster: Any
    folder: Path

    @property
    def address(self) -> str:
        """Of the head."""
        address: str = self.cluster.address
        return address

    def add(self, name: str, resources: dict[str, float] | None = None, **environment: str) -> Any:
        """A node whose host is a device. Each has its own locks, as if it were a machine of its own."""
        folder = self.folder / name
        given = {"TILEWRIGHT_LOCK_DIR": str(folder), "TILEWRIGHT_CACHE_DIR": str(self.folder / "cache")}
        given |= {"TILEWRIGHT_COMPILE_PROCESSES": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
        asked = {"num_cpus": 1, "node_name": name, "resources": resources or {}, "env_vars": given}
        return self.cluster.add_node(wait=True, **asked, **_SMALL)

    def log_lines(self, words: str) -> int:
        """How many lines of what the processes of the nodes logged have these words."""
        logs = Path(self.cluster.head_node.get_logs_dir_path()).glob("worker-*.err")
        lines = (line for path in logs for line in path.read_text(errors="replace").splitlines())
        return sum(words in line for line in lines)

    def restart(self) -> None:
        """End the cluster with all its nodes, and start a head without nodes at the same address."""
        port = int(self.address.rpartition(":")[2])
        self.cluster.shutdown()
        self.cluster = _head(port)

    def serve(self, name: str = "service", **settings: object) -> api_server.Server:
        """A service of this cluster; those with the same database are replicas."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        given = {"database_url": f"sqlite:///{self.folder / 'fleet.db'}", "lease_s": 3, "retune_stale": 0}
        given |= {"engine": "ray", "ray_address": self.address, "devices": "", **settings}
        return api_server.start(folder, **given)


@contextmanager
def running(folder: Path) -> Iterator[Fleet]:
    """A cluster with a head and no node yet."""
    fleet = Fleet(_head(), folder)
    try:
        yield fleet
    finally:
        fleet.cluster.shutdown()


def _head(port: int = 0) -> Any:
    chosen = {"gcs_server_port": port} if port else {}
    return Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_SMALL, **chosen})
