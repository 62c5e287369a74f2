"""What cuBLASLt would run on this GPU, and kernels that follow it."""

from __future__ import annotations

import time

import pytest

from kernels.compiler.build import build
from kernels.registry import families_for
from tilewright import GemmProblem
from tilewright.launch import load
from tuner.measure.correctness import check
from tuner.measure.vendor import vendor_tile_hints

PROBLEMS = [
    GemmProblem(4096, 4096, 4096),
    GemmProblem(64, 4096, 14336),
    GemmProblem(1024, 5027, 768),
    GemmProblem(2048, 2048, 2048, layout="nn", dtype="bfloat16"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_what_cublaslt_tells_can_be_followed(device, problem) -> None:
    hints = vendor_tile_hints(device, problem)
    assert hints
    families = families_for(problem, device.spec).values()
    configs = [
        (family, config)
        for hint in hints
        for family in families
        for config in family.configs_from_hint(hint, problem, device.spec)
    ]
    assert configs, hints
    for family, config in configs:
        kernel = load(build(family, config, problem, device.spec))
        assert check(device, kernel, problem) is None, config


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.alone
def test_asking_takes_less_than_a_third_of_a_second(device, problem) -> None:
    told = vendor_tile_hints(device, problem)  # loads the library, makes the operands
    start = time.monotonic()
    assert vendor_tile_hints(device, problem) == told
    assert time.monotonic() - start < 0.3
