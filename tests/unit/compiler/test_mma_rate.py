"""The kernel that only multiplies registers, by its machine code, and the problems that are measured."""

from __future__ import annotations

import struct

import pytest

from benchmarks.lab.mma_rate import SHAPES, TYPES, probe_binary, problems
from kernels.compiler.cubin import code_sections
from tilewright import GemmProblem, Layout

MMA = {0x03C: "HMMA", 0x037: "IMMA"}
LOCAL = {0x183: "LDL", 0x187: "STL"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("types", TYPES.split())
def test_the_probe_multiplies_and_does_nothing_else(arch: str, types: str) -> None:
    [problem] = problems("64x64x64", types, "nt")
    code = code_sections(probe_binary(problem, arch))[".text.multiply"]
    operations = [low & 0x1FF for low, _ in struct.iter_unpack("<QQ", code)]
    products = [at for at, operation in enumerate(operations) if operation in MMA]
    assert len(products) % 16 == 0
    # From the first product to the last, the loop counter and its branch at most lie between.
    assert products[-1] - products[0] + 1 - len(products) <= len(products) // 8
    assert not LOCAL.keys() & set(operations)


def test_what_is_measured() -> None:
    found = list(problems(SHAPES, "float16 float16:float16 int8", "nt tn"))
    assert len(found) == 6 * 5  # int8 in layout nt alone
    assert GemmProblem(4096, 4096, 4096, layout=Layout.TN) in found
    assert {str(one.accumulate) for one in found} == {"float32", "float16", "int32"}
