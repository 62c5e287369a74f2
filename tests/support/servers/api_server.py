"""Starting and stopping real server processes, each with a database of its own and the host as its device."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tilewright import GemmProblem

STOP_S = 20
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
    "report_misses": "read",
    "gemm": "run",
    "gemm_shared": "run",
    "tune": "tune",
    "cancel_job": "tune",
    "pin_config_set": "admin",
    "unpin_config_set": "admin",
    "import_results": "admin",
}


@dataclasses.dataclass
class Server:
    """A running service."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    def stop(self, sign: int = signal.SIGTERM) -> int:
        """Send a signal to this process and wait for its exit code."""
        self.process.send_signal(sign)
        return self.process.wait(STOP_S)

    def log(self) -> str:
        return (self.folder / "log").read_text()


def environment(folder: Path, **settings: object) -> dict[str, str]:
    chosen = {
        "database_url": f"sqlite:///{folder / 'tilewright.db'}",
        "cache_dir": folder.parent / "tilewright-cache",
        "devices": "host",
        "port": 0,
        **settings,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
    return kept | {f"TILEWRIGHT_{name.upper()}": str(value) for name, value in chosen.items()}


def start(folder: Path, **settings: object) -> Server:
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve", "--json"],
            env=environment(folder, **settings),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    return Server(process, announced_url(process.stdout, folder / "log"), folder)


def announced_url(printed: Iterable[str], log: Path) -> str:
    """Where a server listens, from the first thing that it prints."""
    text = ""
    for line in printed:
        text += line
        with contextlib.suppress(ValueError):
            return str(json.loads(text)["url"])
    raise RuntimeError(f"the service did not start: {log.read_text()}")


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
