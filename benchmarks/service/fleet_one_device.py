"""Two services that ask for one device of a Ray cluster: the second waits until the first is gone.

``python -m benchmarks.service.fleet_one_device --gpus 1 --out fleet-one-gpu.json`` on a machine with a GPU
and the extra ``fleet``; with ``--gpus 0`` the host is the device. Services of two databases share no actor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.service.ray_services import head, hosts, service, wait
from tilewright import Client, GemmProblem
from tilewright.schema.problem import DType, Layout

_ON_GPU = GemmProblem(4096, 4096, 4096, DType.FLOAT16, Layout.NT)
_ON_HOST = GemmProblem(64, 64, 64, DType.FLOAT32, Layout.NN)


def main() -> None:
    """Write what happened, with seconds, to ``--out``."""
    parser = argparse.ArgumentParser(description="Two services, one device of a Ray cluster.")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    problem = _ON_GPU if arguments.gpus else _ON_HOST
    with (
        tempfile.TemporaryDirectory() as named,
        head(arguments.gpus) if arguments.gpus else hosts(1, Path(named) / "locks") as address,
    ):
        arguments.out.write_text(
            json.dumps(_measured(Path(named), address, problem, arguments.trials), indent=1) + "\n"
        )


def _measured(folder: Path, address: str, problem: GemmProblem, trials: int) -> dict[str, Any]:
    started = time.monotonic()
    with contextlib.ExitStack() as first:
        one = first.enter_context(service(folder / "first", address))
        wait(lambda: bool(one.devices()))
        joined_s = time.monotonic() - started
        with service(folder / "second", address) as two:
            first_job = one.tune(problem, max_trials=trials)
            waiting = not two.devices()
            left = time.monotonic()
            first.close()
            wait(lambda: bool(two.devices()))
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


if __name__ == "__main__":
    main()
