"""What the suite races on a GPU: every algorithm of cuBLASLt, cublasGemmEx, torch, all right."""

from __future__ import annotations

from types import ModuleType

import pytest

from benchmarks.suite.opponents import BEST, CUBLAS, OURS, TORCH, most_error, relative_error
from benchmarks.suite.race import race_shape
from kernels.compiler.build import build
from kernels.mma_sync.family import MMA_SYNC
from tilewright import GemmProblem
from tilewright.errors import DeviceUnavailable
from tuner.measure.correctness import reference_values
from tuner.measure.operands import make_tensors

PROBLEMS = [
    GemmProblem(256, 512, 128),
    GemmProblem(256, 512, 128, layout="nn"),
    GemmProblem(256, 512, 128, layout="tt", dtype="bfloat16"),
    GemmProblem(256, 512, 128, layout="nn", acc_dtype="float16"),
    GemmProblem(64, 512, 4096),
    GemmProblem(127, 65, 33),
    GemmProblem(1, 512, 4096),
]


@pytest.fixture
def cublaslt() -> ModuleType:
    return pytest.importorskip("tuner.devices.cublaslt")


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_algorithm_computes_the_product(device, cublaslt, problem) -> None:
    tensors = make_tensors(device, problem, 3, "normal")
    expected = reference_values(device, problem, tensors)
    for choice in cublaslt.every_choice(problem, [tensors], device.spec):
        error = relative_error(device, choice.launches[0], problem, tensors, expected)
        assert error <= most_error(problem), choice.detail


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


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("library", ["cublas", "torch_baseline"])
def test_the_libraries_as_users_call_them(device, library, problem) -> None:
    module = pytest.importorskip(f"tuner.devices.{library}")
    tensors = make_tensors(device, problem, 3, "normal")
    expected = reference_values(device, problem, tensors)
    try:
        choice = module.choice(problem, [tensors])
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    assert relative_error(device, choice.launches[0], problem, tensors, expected) <= most_error(problem)
    assert device.timer(choice.launches)() > 0  # captured in a graph


def test_a_race_of_the_suite(device) -> None:
    problem = GemmProblem(1024, 1024, 1024)
    artifact = build(MMA_SYNC, MMA_SYNC.heuristic_configs(problem, device.spec)[0], problem, device.spec)
    raced = race_shape(device, problem, artifact, rounds=8, seed=0)
    assert {OURS, BEST, CUBLAS} <= set(raced.samples_us)
    assert TORCH in raced.samples_us or TORCH in raced.absent
    assert raced.state in ("settled", "drifting")
    assert raced.mhz
    assert raced.watts
    assert max(raced.errors.values()) <= most_error(problem)
    assert problem.operand_bytes * raced.sets >= 2 * device.spec.l2_bytes
