"""The command in the header of a CUDA source compiles it as it lies there."""

from __future__ import annotations

import re

import pytest
from device_samples import HOPPER
from sweeps import every

from kernels.base.spec import SOURCES, BuildSpec
from kernels.compiler.build import compile_spec
from kernels.registry import FAMILIES
from tilewright import GemmProblem

KERNELS = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.glob("*/kernel.cu"))
SIXTEEN_ROWS = GemmProblem(16, 4096, 4096)


@pytest.mark.parametrize("source", every(2, KERNELS))
def test_the_command_of_a_header_compiles(source: str) -> None:
    text = (SOURCES / source).read_text()
    header = " ".join(line[2:].strip() for line in text.splitlines() if line[:2] == "//")
    command = re.search(rf"nvcc -cubin -arch=(\w+) -I\. (.*?) {re.escape(source)}", header)
    assert command, "no command"
    words = [word.removeprefix("-D").split("=") for word in command[2].split()]
    defines = tuple((name, int(value) if value.isdigit() else value) for name, value in words)
    entry = re.search(r"(\w+)\((?:GEMM_PARAMETERS|const __grid_constant__)", text)
    assert entry, "no kernel"
    family = FAMILIES[source.partition("/")[0]]
    config = next(iter(family.heuristic_configs(SIXTEEN_ROWS, HOPPER)))
    assert dict(defines).keys() == dict(family.build_spec(config, SIXTEEN_ROWS, HOPPER).defines).keys()
    built = compile_spec(BuildSpec("cuda", source, command[1], entry[1], defines))
    assert built.resources.registers > 0
