"""A Ray cluster of this machine, and services on it, for benchmarks of the fleet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tilewright import Client

_PORT = 6399
# NOTE: the first keeps Ray on loopback.
_RAY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextlib.contextmanager
def head(gpus: int, **environment: str) -> Iterator[None]:
    """A Ray cluster of this machine alone, with so many GPUs; the environment is that of their actors."""
    ray = str(Path(sys.executable).with_name("ray"))
    given = ["--head", "--port", str(_PORT), "--num-cpus", "1", "--num-gpus", str(gpus), "--block"]
    given += ["--include-dashboard", "false", "--node-ip-address", "127.0.0.1"]
    with subprocess.Popen(
        [ray, "start", *given], env=os.environ | _RAY | environment, stdout=sys.stderr
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def service(
    folder: Path, database_url: str | None = None, engine: str = "ray", **environment: str
) -> Iterator[Client]:
    """A client of a service, which keeps its database in a new folder unless one is given."""
    folder.mkdir()
    command = [sys.executable, "-m", "service.cli.main", "serve", "--json", "--port", "0", "--engine", engine]
    command += ["--ray-address", f"127.0.0.1:{_PORT}"] if engine == "ray" else []
    command += ["--database-url", database_url or f"sqlite:///{folder / 'fleet.db'}"]
    with subprocess.Popen(
        command, env=os.environ | _RAY | environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n") and (line := process.stdout.readline()):
            text += line
        try:
            with Client(json.loads(text)["url"], timeout=600.0) as client:
                yield client
        finally:
            process.terminate()


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
