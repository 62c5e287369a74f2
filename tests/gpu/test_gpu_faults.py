"""Kernels that break a GPU: each costs its own trial, and the next one runs in a fresh process."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kernels.compiler import nvrtc
from tilewright.artifact import Artifact, Grid, LaunchPlan, Pointer, Resources, Scalar, Serves
from tilewright.schema.problem import DType, GemmProblem, Layout
from tilewright.schema.trial import Outcome
from tuner.workers.bench import Bench, list_devices
from tuner.workers.recovery import gpu_state, why_not_back

PROBLEM = GemmProblem(96, 80, 64, dtype=DType.FLOAT32, layout=Layout.NN)

SOURCE = """
extern "C" __global__ void kernel(
    const float* a, const float* b, float* d, int m, int n, int k, float alpha)
{
    if (FAULT == 1) *reinterpret_cast<volatile int*>(16) = 1;
    if (FAULT == 2) for (volatile int i = 0;; ++i) {}
    if (FAULT == 3) *reinterpret_cast<volatile int*>(reinterpret_cast<char*>(d) + 1) = 1;
    if (FAULT == 4) asm volatile("trap;");
    const int tiles_n = (n + 15) / 16;
    const int row = blockIdx.x / tiles_n * 16 + threadIdx.y;
    const int column = blockIdx.x % tiles_n * 16 + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
    d[row * n + column] = alpha * sum;
}
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    name = list_devices()[0]
    if name == "host":
        pytest.skip("no NVIDIA GPU on this machine")
    made = Bench(name)
    yield made
    made.close()


@functools.cache
def artifact(arch: str, fault: int) -> Artifact:
    built = nvrtc.compile_text(SOURCE, arch, [("FAULT", fault)], entry="kernel")
    plan = LaunchPlan(
        format="cubin",
        target=arch,
        entry="kernel",
        block=(16, 16, 1),
        grid=Grid(16, 16),
        args=(
            *(Pointer(name) for name in ("a", "b", "d")),
            *(Scalar(name, "int32") for name in ("m", "n", "k")),
            Scalar("alpha", "float32"),
        ),
        serves=Serves.of(PROBLEM),
    )
    return Artifact(plan, Resources(), "0" * 64, built.compiler, built.binary)


def assert_good(bench: Bench) -> None:
    result = bench.trial(artifact(bench.spec.arch, 0), PROBLEM, None, timeout_s=60)
    assert result.outcome is Outcome.OK, result.message
    assert result.timing is not None
    assert result.timing.median_us > 0


def test_a_right_kernel(bench: Bench) -> None:
    assert_good(bench)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(1, "illegal memory access", id="illegal-address"),
        pytest.param(3, "misaligned address", id="misaligned"),
        pytest.param(4, "fail", id="trap"),
    ],
)
def test_a_fault_costs_one_trial(bench: Bench, fault: int, message: str) -> None:
    before = bench.restarts
    result = bench.trial(artifact(bench.spec.arch, fault), PROBLEM, None, timeout_s=60)
    assert result.outcome is Outcome.LAUNCH_ERROR
    assert message in result.message
    assert_good(bench)
    assert result.own_fault is True
    assert bench.restarts == before + 2  # it ran again in a new process


def test_an_endless_kernel_costs_one_trial(bench: Bench) -> None:
    start = time.monotonic()
    result = bench.trial(artifact(bench.spec.arch, 2), PROBLEM, None, timeout_s=5.0)
    assert result.outcome is Outcome.TIMEOUT
    assert time.monotonic() - start < 30.0
    assert_good(bench)


HOLD = """
import cupy, sys, time
held = cupy.empty(2**30, cupy.uint8)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_gpu_comes_back_from_each_kill(bench: Bench) -> None:
    """By the true NVML."""
    assert bench._recovery is not None
    before = bench._recovery._before
    assert before is not None
    assert before.most_mhz is None or before.most_mhz > 500
    bench.look()
    assert bench.set_aside == ""
    for fault in (1, 2, 4):
        broken = bench.trial(artifact(bench.spec.arch, fault), PROBLEM, None, timeout_s=10.0)
        assert broken.own_fault is True, broken.message
        assert bench.set_aside == ""
    assert_good(bench)
    assert why_not_back(before, gpu_state(bench.identity), pid=-1) is None


def test_memory_that_a_process_holds_is_seen(bench: Bench) -> None:
    """By its id where NVML lists it, else as memory that no process has."""
    assert_good(bench)
    before = gpu_state(bench.identity)
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            reason = why_not_back(before, gpu_state(bench.identity), holder.pid)
            assert reason is not None
            assert "still hold it" in reason or "in use by no process" in reason
        finally:
            holder.kill()
    time.sleep(2.0)
    assert why_not_back(before, gpu_state(bench.identity), holder.pid) is None
