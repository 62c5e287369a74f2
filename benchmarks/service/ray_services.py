"""A Ray cluster of this machine, and services on it, for benchmarks of the fleet."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common.serving import serving
from tilewright import Client

# NOTE: the first keeps Ray on loopback, the second its workers at the priority of other processes; without
# the last a token of the user's that lies in ~/.ray would be asked for.
_RAY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
_OBJECT_BYTES = 100 << 20  # of shared memory for Ray, to which devices send little


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The devices of a benchmark, and where its files go.

    Attributes:
        devices: ``cuda:0`` and so on; or ``host`` for each device, all of them this machine's CPU.
        folder: of databases, caches and kernels that one part of the benchmark leaves to another.
        compile_processes: compilers of each device.
    """

    devices: tuple[str, ...]
    folder: Path
    compile_processes: int

    @property
    def on_host(self) -> bool:
        """Whether the devices are this machine's CPU."""
        return self.devices[0] == "host"

    @property
    def waiting(self) -> dict[str, str]:
        """How long races wait for a quiet device: those that share a CPU never leave each other quiet."""
        return {"TILEWRIGHT_QUIET_WAIT_S": "0"} if self.on_host else {}

    @contextlib.contextmanager
    def fleet(self, name: str, count: int, **environment: str) -> Iterator[Client]:
        """A client of a service of a new Ray cluster with the first ``count`` devices, once they have
        joined. Its database, in the folder of the name, and the cache of kernels are new."""
        folder = self.folder / name
        # NOTE: the actors of a node share its compilers.
        sharing = 1 if self.on_host else count
        # NOTE: NVRTC keeps what it compiled as well.
        kept = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "CUDA_CACHE_PATH": str(folder / "nvrtc")}
        kept |= environment
        kept["TILEWRIGHT_COMPILE_PROCESSES"] = str(self.compile_processes * sharing)
        kept |= self.waiting
        folder.mkdir()
        with (
            hosts(count, folder, **kept) if self.on_host else head(count, **kept) as address,
            service(folder / "service", address, self.database(name), **kept) as client,
        ):
            wait(lambda: len(client.devices()) == count)
            yield client

    @contextlib.contextmanager
    def local(self, name: str, device: str, **environment: str) -> Iterator[Client]:
        """A client of a service with one device and no Ray; the rest as in :meth:`fleet`."""
        folder = self.folder / name
        folder.mkdir()
        kept = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "TILEWRIGHT_LOCK_DIR": str(folder)}
        kept |= {"TILEWRIGHT_COMPILE_PROCESSES": str(self.compile_processes), **self.waiting, **environment}
        with service(
            folder / "service", None, self.database(name), TILEWRIGHT_DEVICES=device, **kept
        ) as client:
            yield client

    def database(self, name: str) -> str:
        """The URL of the database of a service."""
        return f"sqlite:///{self.folder / name / 'fleet.db'}"


@contextlib.contextmanager
def marked() -> Iterator[dict[str, str]]:
    """An entry of the environment for processes; those that have it at the end, and their children, are
    killed."""
    mark = f"FLEET_{secrets.token_hex(8)}"
    try:
        yield {mark: "1"}
    finally:
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{mark}=1".encode() in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)


@contextlib.contextmanager
def head(gpus: int, **environment: str) -> Iterator[str]:
    """The address of a Ray cluster of this machine alone, one node with so many GPUs; the environment is that
    of their actors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # NOTE: as a module, since a script of another interpreter may stand first on the path.
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--port", str(port), "--num-cpus", "1", "--num-gpus", str(gpus)]
    command += ["--include-dashboard", "false", "--node-ip-address", "127.0.0.1"]
    command += ["--object-store-memory", str(_OBJECT_BYTES)]
    with (
        marked() as mark,
        subprocess.Popen(command, env=os.environ | _RAY | environment | mark, stdout=sys.stderr) as process,
    ):
        try:
            wait(lambda: _listens(port))
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()  # NOTE: asked to end, Ray waits half a minute for its actors


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def hosts(count: int, folder: Path, **environment: str) -> Iterator[str]:
    """The address of a Ray cluster of nodes that each give this machine's CPU as a device, with a folder for
    its locks."""
    os.environ |= _RAY  # which is read at the import
    from ray.cluster_utils import Cluster

    small = {"include_dashboard": False, "object_store_memory": _OBJECT_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        for index in range(count):
            own = environment | {"TILEWRIGHT_LOCK_DIR": str(folder / f"n{index}")}
            cluster.add_node(num_cpus=1, node_name=f"n{index}", env_vars=own, wait=True, **small)
        yield cluster.address
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def service(
    folder: Path, address: str | None, database_url: str | None = None, **environment: str
) -> Iterator[Client]:
    """A client of a service on the Ray cluster at an address, of this machine's devices for None; it keeps
    its database in a new folder unless one is given."""
    folder.mkdir()
    database_url = database_url or f"sqlite:///{folder / 'fleet.db'}"
    options = ("--engine", "ray", "--ray-address", address) if address else ()
    with (
        serving(database_url, *options, log=True, **_RAY | environment) as running,
        Client(running.url, timeout=600.0) as client,
    ):
        yield client


def wait(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Return once a condition holds.

    Raises:
        TimeoutError: it did not within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s; see the log of the services")
        time.sleep(0.2)
