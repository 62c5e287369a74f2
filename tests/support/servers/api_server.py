"""Starting and stopping real server processes, each with a database of its own and the host as its device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from databases import migrate
from forked_server import ForkedProcess

from service.signing import Signer
from tilewright import GemmProblem
from tilewright.artifact.cache import default_folder
from tilewright.trust import ServiceKey
from tuner.store.access import keys
from tuner.store.database import Store

STOP_S = 20
QUICK_KERNELS = {"HOST_KERNEL_FLAGS": "-O1"}  # NOTE: -O3 compiles for twice as long
SMALL_LIMITS = {"max_extent": 2048, "max_body_bytes": 2**20, "max_queue": 3}
TUNED = GemmProblem(64, 48, 32, "float32", "nn")
# Every operation of the service, and the scope that it asks for; None: it needs no key.
OPERATIONS = {
    "live": None,
    "ready": None,
    "startup": None,
    "list_jobs": "read",
    "get_job": "read",
    "list_trials": "read",
    "follow_job": "read",
    "best_config": "read",
    "lookup_best_configs": "read",
    "explain": "read",
    "report": "read",
    "artifact": "read",
    "families": "read",
    "devices": "read",
    "metrics": "read",
    "list_config_sets": "read",
    "current_config_set": "read",
    "config_set": "read",
    "diff_config_sets": "read",
    "config_set_bundle": "read",
    "config_set_artifacts": "read",
    "list_misses": "read",
    "export_results": "read",
    "trust": "read",
    "report_misses": "read",
    "gemm": "run",
    "gemm_shared": "run",
    "tune": "tune",
    "cancel_job": "tune",
    "cancel_jobs": "tune",
    "pin_config_set": "admin",
    "unpin_config_set": "admin",
    "import_results": "admin",
    "list_imports": "read",
    "get_import": "read",
    "list_audit": "admin",
    "list_quarantine": "read",
    "release_quarantined": "admin",
    "release_device": "admin",
    "delete_import": "admin",
    "delete_best_config": "admin",
    "delete_problem": "admin",
}


@dataclasses.dataclass
class Server:
    """A running service."""

    process: ForkedProcess | subprocess.Popen[str]
    url: str
    folder: Path

    def stop(self, sign: int = signal.SIGTERM) -> int:
        """Send a signal to this process and wait for its exit code."""
        self.process.send_signal(sign)
        return self.process.wait(STOP_S)

    @property
    def signer(self) -> Signer:
        """What it signs with."""
        return Signer.load(self.folder / "signing.key")

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def cpu_s(self) -> float:
        """Seconds of CPU that this process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self, name: str = "VmRSS:") -> int:
        """Memory that this process has resident now, or with ``VmHWM:`` had at most."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        (found,) = (line for line in lines if line.startswith(name))
        return int(found.split()[1]) * 1024


def environment(folder: Path, **settings: object) -> dict[str, str]:
    chosen = {
        "database_url": f"sqlite:///{folder / 'tilewright.db'}",
        "cache_dir": folder.parent / "tilewright-cache",
        "devices": "host",
        "compile_processes": 1,
        "lock_dir": folder,
        "port": 0,
        "quiet_wait_s": 0,
        **settings,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
    return kept | QUICK_KERNELS | {f"TILEWRIGHT_{name.upper()}": str(value) for name, value in chosen.items()}


def start(folder: Path, *under: str, **settings: object) -> Server:
    """A server of these settings: a program of its own run by the command ``under`` where one is given, else
    one that is forked, measures for less time and, unless a URL is given, finds its database migrated."""
    process: ForkedProcess | subprocess.Popen[str]
    chosen, log, arguments = environment(folder, **settings), folder / "log", ["serve", "--json"]
    if under:
        command = [*under, sys.executable, "-m", "service.cli.main", *arguments]
        with log.open("a") as errors:
            process = subprocess.Popen(command, env=chosen, stdout=subprocess.PIPE, stderr=errors, text=True)
    else:
        database = folder / "tilewright.db"
        if "database_url" not in settings and not database.exists():
            database.write_bytes(_migrated())
        process = ForkedProcess(arguments, chosen, log, quick=True)
    assert process.stdout is not None
    url = announced_url(process.stdout, log)
    if "port" not in settings:  # another server of these tests may have had it, with another key
        ServiceKey(url, default_folder())._file.unlink(missing_ok=True)
    return Server(process, url, folder)


@functools.cache
def _migrated() -> bytes:
    """An SQLite database with the schema of this release and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "tilewright.db"
        migrate(f"sqlite:///{database}")
        return database.read_bytes()


def announced_url(printed: Iterable[str], log: Path) -> str:
    """Where a server listens, from the first thing that it prints."""
    text = ""
    for line in printed:
        text += line
        with contextlib.suppress(ValueError):
            return str(json.loads(text)["url"])
    raise RuntimeError(f"the service did not start: {log.read_text()}")


def admin_key(server: Server) -> str:
    """An API key of the server that may do everything; from then on every request needs one."""
    with opened_database(server) as store, store.begin() as session:
        return keys.create(session, "test", frozenset({"admin"}))[1]


def trust(server: Server, public_key: str) -> None:
    """Let the server run what this key signed."""
    with opened_database(server) as store, store.begin() as session:
        keys.trust(session, public_key, "test")


def opened_database(server: Server) -> contextlib.closing[Store]:
    """The database of a server, which has its schema by now."""
    return contextlib.closing(Store.open(f"sqlite:///{server.folder / 'tilewright.db'}"))


def finish(server: Server) -> None:
    if server.process.poll() is None:
        server.process.terminate()
        try:
            server.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
    assert server.process.stdout is not None
    server.process.stdout.close()


def children(pid: int, module: bytes) -> list[int]:
    """Processes that a process started to run a module."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and module in command.split(b"\0"):
            found.append(int(path.parent.name))
    return found
