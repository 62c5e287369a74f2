"""The faults of the benchmark of a fleet's broken kernels stand in the sources of their families."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.service.fleet.broken import ON_GPU, ON_HOST, Planted

_BUILD = """
import sys
from pathlib import Path
import kernels
from benchmarks.lab.mma_counters import DEVICE
from benchmarks.service.fleet.jobs import problems
from benchmarks.service.ray_services import Machine
from kernels.compiler.build import build
from kernels.registry import FAMILIES
from tuner.devices.host import HostDevice
name = sys.argv[1]
devices, spec = (("host",), HostDevice().spec) if name == "host" else (("cuda:0",), DEVICE)
problem = problems(Machine(devices, Path(), 1), 1)[0]
config = FAMILIES[name].heuristic_configs(problem, spec)[0]
print(kernels.__file__)
print(build(FAMILIES[name], config, problem, spec).source_digest)
"""


def built(name: str, **environment: str) -> list[str]:
    command = [sys.executable, "-P", "-c", _BUILD, name]
    ran = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    "planted", [pytest.param(ON_GPU, id="gpu"), pytest.param(ON_HOST, id="host", marks=pytest.mark.long)]
)
def test_a_copy_with_faults_compiles_and_differs(planted: Planted, tmp_path: Path) -> None:
    folder = planted.copied_to(tmp_path)
    text = (folder / "kernels" / planted.source).read_text()
    assert text.count("*(volatile int *)16 = 1;") == text.count("for (volatile int i = 0;;") == 1
    package, digest = built(planted.family, PYTHONPATH=str(folder))
    assert package.startswith(str(folder))
    assert digest != built(planted.family)[1]
