"""The facts about a benchmark run, and its result files."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import hashlib
import json
import os
import platform
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.launch.host import cpu_info
from tilewright.schema.device import DeviceSpec

RESULTS = Path(__file__).parents[1] / "results"


def device_facts(spec: DeviceSpec, driver: str) -> dict[str, Any]:
    """The device, its class and its driver."""
    return {"device": spec.to_dict(), "device_class": spec.device_class.id, "driver": driver}


def machine_facts() -> dict[str, Any]:
    """This machine, its load in the last minute, and its Python."""
    return {
        "cpu": cpu_info("model name"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average_1_min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of this code, with ``-dirty`` behind it where files differ; None where git does not know."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(asked, cwd=RESULTS, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


@functools.cache
def sources() -> str:
    """A digest of all that a result rests on: the sources of kernels, tuner and client."""
    root, digest = RESULTS.parents[1], hashlib.sha256()
    for folder in ("client", "kernels", "tuner"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".cu", ".cuh", ".h", ".c"):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def write_json(path: Path, data: Any) -> None:
    """Replace a file at once, so that a process killed in between leaves the old one."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    os.replace(part, path)


def tell(result: dict[str, Any], out: Path | None) -> None:
    """Print a result, and write it to a file if one is given."""
    print(json.dumps(result, indent=1))  # noqa: T201
    if out:
        write_json(out, result)


class Rows:
    """A file of rows that is whole after each of them, so that a run that is cut short loses none. Threads
    may share it."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        """``facts`` stand before the rows; a file that is there already is replaced by the first row."""
        self._path, self._found = path, {**facts, "date": now(), "rows": []}
        self._lock = threading.Lock()

    def add(self, kind: str, **row: Any) -> None:
        """Keep a row."""
        with self._lock:
            self._found["rows"].append({"kind": kind, **row})
            write_json(self._path, self._found)


class SharedRows:
    """A list of rows on disk to which several processes add, one on each GPU for instance."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """A row replaces the one that has the same values under ``names``."""
        self.path, self._names = path, names

    def rows(self) -> list[dict[str, Any]]:
        """The rows that are there."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def holds(self, values: dict[str, Any]) -> bool:
        """Whether one of the rows has all of these values."""
        return any(all(row.get(name) == values[name] for name in values) for row in self.rows())

    def keep(self, row: dict[str, Any]) -> None:
        """Add a row or replace it, and write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.path.parent):
            others = [one for one in self.rows() if any(one[name] != row[name] for name in self._names)]
            write_json(self.path, [*others, row])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; it ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
