"""What cuBLASLt would run on this GPU, and kernels that follow it."""

from __future__ import annotations

import time

import pytest

from kernels.build import build
from kernels.registry import families_for
from tilewright import GemmProblem
from tilewright.launch import load
from tuner.check import check
from tuner.outline import vendor_outlines

PROBLEMS = [
    GemmProblem(4096, 4096, 4096),
    GemmProblem(64, 4096, 14336),
    GemmProblem(1024, 5027, 768),
    GemmProblem(2048, 2048, 2048, layout="nn", dtype="bfloat16"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_what_cublaslt_tells_can_be_followed(device, problem) -> None:
    outlines = vendor_outlines(device, problem)
    assert outlines
    families = families_for(problem, device.spec).values()
    configs = [
        (family, config)
        for outline in outlines
        for family in families
        for config in family.imitations(outline, problem, device.spec)
    ]
    assert configs, outlines
    for family, config in configs:
        kernel = load(build(family, config, problem, device.spec))
        assert check(device, kernel, problem) is None, config


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_asking_takes_less_than_a_third_of_a_second(device, problem) -> None:
    told = vendor_outlines(device, problem)  # loads the library, makes the operands
    start = time.monotonic()
    assert vendor_outlines(device, problem) == told
    assert time.monotonic() - start < 0.3
