"""Launch compiled kernels one after the other, for a tool that watches the process.

``python -m benchmarks.lab.launched FOLDER`` takes the kernels that :func:`write` put there in the order of
their names, launches each once and prints ``launched NAME``. Operands come from the host, so that no other
kernel runs. A kernel of an earlier release can be among them: an artifact holds all that a launch needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.artifact import Artifact
from tilewright.launch import load
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.devices.host import HostDevice
from tuner.measure.operands import bind, make_tensors
from tuner.workers.device_worker import open_device

SAID = "launched "
_ARTIFACT, _PROBLEM = ".artifact", ".json"
_OPERANDS = ("a", "b", "c", "d", "bias")


def write(folder: Path, name: str, artifact: Artifact, problem: GemmProblem) -> None:
    """Put a kernel into a folder; the name is one of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (name + _ARTIFACT)).write_bytes(artifact.to_bytes())
    (folder / (name + _PROBLEM)).write_text(json.dumps(problem.to_dict()))


def names(folder: Path) -> list[str]:
    """The kernels of a folder, in the order of their launches."""
    return sorted(path.name.removesuffix(_ARTIFACT) for path in folder.glob("*" + _ARTIFACT))


def read(folder: Path, name: str) -> tuple[Artifact, GemmProblem]:
    """A kernel that :func:`write` put into a folder."""
    problem = GemmProblem.from_dict(json.loads((folder / (name + _PROBLEM)).read_text()))
    return Artifact.from_bytes((folder / (name + _ARTIFACT)).read_bytes()), problem


def command(folder: Path, device: str) -> list[str]:
    """The command that launches the kernels of a folder."""
    return [sys.executable, "-m", "benchmarks.lab.launched", str(folder), "--device", device]


def launch_all(folder: Path, device: Device) -> Iterator[str]:
    """The name of each kernel once its launch has ended.

    Raises:
        LaunchError: the device refused it or failed.
    """
    for name in names(folder):
        artifact, problem = read(folder, name)
        kernel = load(artifact)
        tensors = _operands(device, problem)  # a launch has their addresses alone
        bound = bind(device, kernel, problem, [tensors])
        device.synchronize()
        bound.launches[0]()
        device.synchronize()
        kernel.close()
        yield name


def _operands(device: Device, problem: GemmProblem) -> Tensors:
    tensors = make_tensors(HostDevice(), problem, 0, "normal")
    copies: dict[str, Any] = {
        name: device.upload(array) for name in _OPERANDS if (array := getattr(tensors, name)) is not None
    }
    return replace(tensors, **copies)


def main() -> None:
    """Launch the kernels of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    for name in launch_all(arguments.folder, open_device(arguments.device)):
        sys.stdout.write(SAID + name + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
