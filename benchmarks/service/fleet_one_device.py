"""Two services that ask for one device of a Ray cluster: the second waits until the first is gone.

``python -m benchmarks.service.fleet_one_device --gpus 1 --out fleet-one-gpu.json`` on a machine with a GPU
and the extra ``fleet``; with ``--gpus 0`` the host is the device. Services of two databases share no actor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tilewright import Client, GemmProblem
from tilewright.schema.problem import DType, Layout

_ON_GPU = GemmProblem(4096, 4096, 4096, DType.FLOAT16, Layout.NT)
_ON_HOST = GemmProblem(64, 64, 64, DType.FLOAT32, Layout.NN)
_PORT = 6399
_LONGEST_S = 240.0
# NOTE: the first keeps Ray on loopback.
_RAY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def main() -> None:
    """Write what happened, with seconds, to ``--out``."""
    parser = argparse.ArgumentParser(description="Two services, one device of a Ray cluster.")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    problem = _ON_GPU if arguments.gpus else _ON_HOST
    with tempfile.TemporaryDirectory() as named, _head(arguments.gpus):
        arguments.out.write_text(
            json.dumps(_measured(Path(named), problem, arguments.trials), indent=1) + "\n"
        )


def _measured(folder: Path, problem: GemmProblem, trials: int) -> dict[str, Any]:
    started = time.monotonic()
    with contextlib.ExitStack() as first:
        one = first.enter_context(_service(folder / "first"))
        _wait(lambda: bool(one.devices()))
        joined_s = time.monotonic() - started
        with _service(folder / "second") as two:
            first_job = one.tune(problem, max_trials=trials)
            waiting = not two.devices()
            left = time.monotonic()
            first.close()
            _wait(lambda: bool(two.devices()))
            taken_s = time.monotonic() - left
            second_job = two.tune(problem, max_trials=trials)
            return {
                "device": _device(two),
                "joined_s": round(joined_s, 1),
                "second_waited": waiting,
                "taken_over_s": round(taken_s, 1),
                "first": str(first_job.status),
                "second": str(second_job.status),
                "trials": trials,
            }


def _device(client: Client) -> str:
    """The name and model of the only device."""
    (device,) = client.devices()
    return f"{device.name}: {device.model} ({device.device_class})"


@contextlib.contextmanager
def _head(gpus: int) -> Iterator[None]:
    ray = str(Path(sys.executable).with_name("ray"))
    given = ["--head", "--port", str(_PORT), "--num-cpus", "1", "--num-gpus", str(gpus), "--block"]
    given += ["--include-dashboard", "false", "--node-ip-address", "127.0.0.1"]
    with subprocess.Popen([ray, "start", *given], env=os.environ | _RAY, stdout=sys.stderr) as head:
        try:
            yield
        finally:
            head.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def _service(folder: Path) -> Iterator[Client]:
    folder.mkdir()
    command = [sys.executable, "-m", "service.cli.main", "serve", "--json", "--port", "0", "--engine", "ray"]
    command += ["--ray-address", f"127.0.0.1:{_PORT}", "--database-url", f"sqlite:///{folder / 'fleet.db'}"]
    with subprocess.Popen(command, env=os.environ | _RAY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n") and (line := process.stdout.readline()):
            text += line
        try:
            with Client(json.loads(text)["url"], timeout=600.0) as client:
                yield client
        finally:
            process.terminate()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_LONGEST_S:g} s; see the log of the services")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
