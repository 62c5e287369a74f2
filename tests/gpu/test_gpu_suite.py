"""Every algorithm of cuBLASLt that a benchmark races is right."""

from __future__ import annotations

from types import ModuleType

import pytest
from gate import reference_values

from tilewright import GemmProblem
from tuner.measure.encoding import decode
from tuner.measure.operands import make_tensors

PROBLEMS = [
    GemmProblem(256, 512, 128),
    GemmProblem(256, 512, 128, layout="nn"),
    GemmProblem(256, 512, 128, layout="tt", dtype="bfloat16"),
    GemmProblem(256, 512, 128, layout="nn", acc_dtype="float16"),
    GemmProblem(64, 512, 4096),
    GemmProblem(127, 65, 33),
    GemmProblem(1, 512, 4096),
    GemmProblem(1, 1, 4096, dtype="bfloat16"),
]


@pytest.fixture
def cublaslt() -> ModuleType:
    return pytest.importorskip("tuner.devices.cublaslt")


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_algorithm_computes_the_product(device, cublaslt, problem) -> None:
    tensors = make_tensors(device, problem, 3, "integer")
    expected = reference_values(device, problem, tensors)
    for choice in cublaslt.every_choice(problem, [tensors], device.spec):
        tensors.d[...] = 0
        device.synchronize()
        device.once(choice.launches[0])
        error = device.xp.abs(decode(tensors.d, problem.out) - expected)
        assert float(error.max()) <= 0.01 * float(device.xp.abs(expected).max()), choice.detail


def test_no_algorithm_keeps_another_from_its_launch(device, cublaslt) -> None:
    """The heuristics propose algorithms without a tile here, whose splits of k are not forced. After other
    products the library may refuse one that it proposes; that one is left out."""
    problem = GemmProblem(1, 1, 4096, dtype="bfloat16")
    sets = [make_tensors(device, problem, 3, "normal")]
    proposed = cublaslt.choices(problem, sets, device.spec)
    every = cublaslt.every_choice(problem, sets, device.spec)
    assert "TILE_UNDEFINED" in {choice.detail["tile"] for choice in proposed}
    details = iter([choice.detail for choice in proposed])
    assert every
    for choice in every:
        assert choice.detail in details  # in the same order, and each once
        device.once(choice.launches[0])


def test_forced_split_k_adds_algorithms(device, cublaslt) -> None:
    """A long k and few CTAs: the library accepts more split counts than its heuristics propose."""
    problem = GemmProblem(64, 512, 16384)
    sets = [make_tensors(device, problem, 3, "normal")]
    proposed = cublaslt.choices(problem, sets, device.spec)
    every = cublaslt.every_choice(problem, sets, device.spec)
    assert [choice.detail for choice in every[: len(proposed)]] == [choice.detail for choice in proposed]
    counts = {choice.detail["split_k"] for choice in every[len(proposed) :]}
    assert len(every) > len(proposed)
    assert counts <= set(range(2, 17))
