"""A service that runs for the duration of a benchmark."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_END_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """A running service."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time that it has spent so far, its children's not."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> int:
        """The most memory that it has had."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [line] = [line for line in lines if "VmHWM" in line]
        return round(int(line.split()[1]) / 1024)


@contextlib.contextmanager
def serving(database_url: str, *options: str, log: bool = False, **environment: str) -> Iterator[Serving]:
    """A service on a database and a free port, with options of ``tilewright serve`` and an environment; its
    log goes to stderr or nowhere."""
    command = [sys.executable, "-m", "service.cli.main", "serve", "--json", "--port", "0"]
    command += ["--database-url", database_url, *options]
    with subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=None if log else subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield Serving(_url(process), process.pid)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()


def _url(process: subprocess.Popen[str]) -> str:
    printed = ""
    for line in process.stdout or ():
        printed += line
        with contextlib.suppress(ValueError):
            return str(json.loads(printed)["url"])
    raise RuntimeError(f"the service did not start: {printed}")
