"""The CPU as a device: what it tells of itself, its clock, its vendor library."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from host_samples import activate

from tilewright.launch.host import host_arch
from tilewright.schema.problem import GemmProblem
from tuner.devices import host
from tuner.devices.base import Device, Tensors
from tuner.devices.host import HostDevice, query_host


def _tensors(problem: GemmProblem) -> Tensors:
    random = np.random.default_rng(3)

    def values(*shape: int) -> Any:
        return random.standard_normal(shape).astype(problem.dtype)

    return Tensors(
        a=values(problem.batch, *problem.a_shape),
        b=values(problem.batch, *problem.b_shape),
        c=values(problem.batch, problem.m, problem.n),
        d=np.full((problem.batch, problem.m, problem.n), np.nan, problem.dtype),
        bias=values(problem.n),
        alpha=0.5,
        beta=-2.0 if problem.has_c else 0.0,
    )


def test_describes_this_machine() -> None:
    device: Device = HostDevice()
    spec = device.spec
    assert spec == query_host()
    assert (spec.kind, spec.arch) == ("host", host_arch())
    assert 1 <= spec.sm_count <= (os.cpu_count() or 1)
    assert 0 < device.free_bytes() <= spec.memory_bytes
    assert spec.device_class.id.startswith(f"{host_arch()}-{spec.sm_count}t-")
    assert device.driver
    telemetry = device.telemetry()
    assert telemetry.watts is None
    assert telemetry.mhz is None or telemetry.mhz > 100


@pytest.mark.parametrize("variable", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_numpy_has_as_many_threads_as_kernels_whatever_the_environment_says(variable: str) -> None:
    program = (
        "import threadpoolctl; from tuner.devices.host import HostDevice, blas_detail; device = HostDevice();"
        "pools = [p['num_threads'] for p in threadpoolctl.threadpool_info() if p['user_api'] == 'blas'];"
        "print({device.spec.sm_count, blas_detail()['threads'], *pools})"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {variable: "1"}, check=True, stdout=subprocess.PIPE
    )
    assert told.stdout.decode().strip() == str({len(os.sched_getaffinity(0))})


BOTH_SIDES = """
from pathlib import Path
import numpy as np
from host_samples import LARGE, Case, config_of
from kernels.host.config import thread_counts
from tilewright.schema.problem import GemmProblem
from tuner.devices.host import HostDevice, blas_detail

device = HostDevice()
most = max(thread_counts(device.spec))
Case(GemmProblem(256, 256, 64, "float32", "nn")).run(config_of(threads=most), device.spec)
np.ones((512, 512)) @ np.ones((512, 512))
states = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
allowed = {line for text in states for line in text.splitlines() if line.startswith("Cpus_allowed:")}
print(most, blas_detail()["threads"], len(allowed), len(states))
"""


@pytest.mark.parametrize("count", [1, len(os.sched_getaffinity(0))])
def test_both_sides_of_a_race_have_the_same_threads_and_cores(count: int) -> None:
    """Those of the process, which is how a machine or a user limits it; kernels and BLAS pin no thread."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    told = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {cores})\n{BOTH_SIDES}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        stdout=subprocess.PIPE,
    )
    kernel, blas, affinities, threads = map(int, told.stdout.split())
    assert (kernel, blas, affinities) == (count, count, 1)
    assert threads > 2 * (count - 1), "threads of both sides were looked at"


def test_the_last_level_cache_is_the_largest(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_CPU0", tmp_path)
    assert query_host().l2_bytes == 0
    for index, size in enumerate(["32K", "1024K", "24M"]):
        folder = tmp_path / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpufreq" / "cpuinfo_max_freq").write_text("3700000\n")
    (tmp_path / "cpufreq" / "scaling_cur_freq").write_text("2500000\n")
    assert query_host().l2_bytes == 24 << 20
    assert query_host().clock_mhz == 3700
    assert HostDevice().telemetry().mhz == 2500.0


def test_timer_gives_microseconds_per_launch_in_order() -> None:
    order: list[int] = []

    def launch(number: int) -> Any:
        def run(stream: int = 0) -> None:  # noqa: ARG001
            order.append(number)
            time.sleep(0.01)

        return run

    took = HostDevice().timer([launch(1), launch(2)])()
    assert order == [1, 2]
    assert 10_000 <= took < 100_000


def test_address_is_where_the_array_lies() -> None:
    array = np.arange(4.0)
    assert HostDevice().address(array[1:]) == HostDevice().address(array) + 8


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("extras", [False, True])
def test_vendor_computes_the_whole_problem(layout: str, activation: str, extras: bool) -> None:
    problem = GemmProblem(
        33, 17, 29, "float64", layout, batch=3, activation=activation, has_bias=extras, has_c=extras
    )
    sets = [_tensors(problem), _tensors(problem)]
    (choice,) = HostDevice().vendor(problem, sets)
    for launch, tensors in zip(choice.launches, sets, strict=True):
        launch()
        launch()  # a second run gives the same: nothing accumulates
        a = tensors.a.transpose(0, 2, 1) if layout[0] == "t" else tensors.a
        b = tensors.b.transpose(0, 2, 1) if layout[1] == "t" else tensors.b
        total = 0.5 * (a @ b) + (extras and -2.0 * tensors.c + tensors.bias)
        np.testing.assert_allclose(tensors.d, activate(total, problem.activation), rtol=1e-12, atol=1e-12)
    assert choice.name == "numpy"
    assert {"blas", "version", "threads"} <= set(choice.detail)


def test_vendor_has_nothing_for_half_precision() -> None:
    problem = GemmProblem(8, 8, 8, "float16")
    assert HostDevice().vendor(problem, [_tensors(dataclasses.replace(problem))]) == []
