"""The CPU as a device: NumPy arrays, a monotonic clock, NumPy's BLAS as the vendor library."""

from __future__ import annotations

import functools
import math
import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from tilewright.launch import Launch
from tilewright.launch.host import cpu_info, host_arch
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Conditions, Telemetry, Tensors, VendorChoice

_CPU0 = Path("/sys/devices/system/cpu/cpu0")
_THERMAL = Path("/sys/class/thermal/thermal_zone0/temp")
_ALIGNED = 16
_GELU_INNER = math.sqrt(2.0 / math.pi)


def query_host() -> DeviceSpec:
    """The description of this machine's CPU: usable threads, memory and last-level cache in bytes."""
    return DeviceSpec(
        kind="host",
        arch=host_arch(),
        name=cpu_info("model name") or platform.processor() or platform.machine(),
        sm_count=_usable_threads(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        l2_bytes=_last_level_cache(),
        clock_mhz=round(_kilohertz("cpuinfo_max_freq") / 1000),
    )


class HostDevice:
    """Implements :class:`tuner.devices.base.Device` for the CPU.

    NumPy's BLAS gets as many threads as kernels may have, whatever ``OMP_NUM_THREADS`` and the like say.
    """

    settle_s = 0.1

    def __init__(self) -> None:
        self.spec = query_host()
        threadpoolctl.threadpool_limits(limits=self.spec.sm_count, user_api="blas")
        self.driver = f"{platform.system()} {platform.release()}"
        self.identity = "host"
        self.xp: Any = np

    def address(self, array: Any) -> int:
        """The address of an array's first byte."""
        return int(array.ctypes.data)

    def synchronize(self) -> None:
        """Do nothing: a host launch returns when its result is complete."""

    def timer(self, launches: Sequence[Launch]) -> Callable[[], float]:
        """A function that runs all launches once, in order, between two readings of the monotonic
        nanosecond clock and returns microseconds per launch."""

        def run() -> float:
            start = time.perf_counter_ns()
            for launch in launches:
                launch()
            return (time.perf_counter_ns() - start) / 1000 / len(launches)

        return run

    def once(self, launch: Launch) -> float:
        """Microseconds of one launch, timed as by :meth:`timer`."""
        return self.timer([launch])()

    def pause(self, stream: int = 0) -> None:
        """Do nothing: launches end before they return."""

    def crowd(self) -> None:
        """Do nothing: threads of a kernel run in the order that the system chooses."""

    def telemetry(self) -> Telemetry:
        """The clock of the first core if the kernel reports it; no power."""
        kilohertz = _kilohertz("scaling_cur_freq")
        return Telemetry(mhz=kilohertz / 1000 if kilohertz else None)

    def conditions(self) -> Conditions:
        """The highest clock that the first core is allowed, and the first temperature that the kernel
        reports; no power limit."""
        kilohertz = _kilohertz("scaling_max_freq")
        try:
            celsius = int(_THERMAL.read_text()) / 1000
        except (OSError, ValueError):
            celsius = None
        return Conditions(most_mhz=kilohertz / 1000 if kilohertz else None, celsius=celsius)

    def others(self) -> dict[str, float]:
        """Seconds so far, by kind: other processes ran on the cores that this process may use, a hypervisor
        took these cores, or this thread was ready and had to wait. Kinds that Linux does not report are left
        out."""
        return _others()

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """NumPy's BLAS as the only algorithm; empty for types that no BLAS has."""
        if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return []
        return [VendorChoice("numpy", [NumpyGemm(problem, tensors) for tensors in sets], blas_detail())]

    def every_vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """NumPy's BLAS."""
        return self.vendor(problem, sets)

    def vendor_default(self, problem: GemmProblem, tensors: Tensors) -> VendorChoice | None:
        """NumPy's BLAS; None for types that no BLAS has."""
        return next(iter(self.vendor(problem, [tensors])), None)

    def pin(self, memory: Any) -> bool:  # noqa: ARG002
        """False: nothing is copied."""
        return False

    def unpin(self, memory: Any) -> None:
        """Do nothing: nothing was pinned."""

    def upload(self, array: Any) -> Any:
        """The array itself, or an aligned copy if it is not aligned."""
        return array.copy() if self.address(array) % _ALIGNED else array

    def result_buffer(self, out: Any) -> Any:
        """``out`` itself, or an aligned array if it is not aligned."""
        return np.empty_like(out) if self.address(out) % _ALIGNED else out

    def download(self, made: Any, out: Any) -> None:
        """Copy the result to ``out`` if it was computed elsewhere."""
        if made is not out:
            out[...] = made

    def free_bytes(self) -> int:
        """Bytes that can still be allocated; all memory if the operating system does not report it."""
        path = Path("/proc/meminfo")
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return self.spec.memory_bytes


class NumpyGemm:
    """One GEMM by ``numpy.matmul`` into D; transposed operands are views, never copies.

    D must not overlap C.
    """

    def __init__(self, problem: GemmProblem, tensors: Tensors) -> None:
        layout = problem.layout
        self._a = tensors.a.transpose(0, 2, 1) if layout.a_transposed else tensors.a
        self._b = tensors.b.transpose(0, 2, 1) if layout.b_transposed else tensors.b
        self._problem, self._tensors = problem, tensors
        needs_scratch = problem.has_c or problem.activation is Activation.GELU
        self._scratch = np.empty_like(tensors.d) if needs_scratch else None

    def __call__(self, stream: int = 0) -> None:  # noqa: ARG002
        """Run once."""
        problem, tensors, d = self._problem, self._tensors, self._tensors.d
        np.matmul(self._a, self._b, out=d)
        if tensors.alpha != 1.0:
            np.multiply(d, d.dtype.type(tensors.alpha), out=d)
        if problem.has_c and tensors.beta != 0.0:
            d += np.multiply(tensors.c, d.dtype.type(tensors.beta), out=self._scratch)
        if problem.has_bias:
            d += tensors.bias
        if problem.activation is Activation.RELU:
            np.maximum(d, 0, out=d)
        elif problem.activation is Activation.GELU:
            _gelu(d, self._scratch)


@functools.cache
def blas_detail() -> dict[str, Any]:
    """Name and version of NumPy's BLAS, and its threads."""
    config: Any = np.show_config(mode="dicts")
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return {
        "blas": str(blas.get("name", "unknown")),
        "version": str(blas.get("version", "unknown")),
        "numpy": np.__version__,
        "threads": min((pool["num_threads"] for pool in pools), default=1),
    }


def _gelu(x: Any, scratch: Any) -> None:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) in place."""
    np.multiply(x, x, out=scratch)
    scratch *= 0.044715 * _GELU_INNER
    scratch += _GELU_INNER
    scratch *= x
    np.tanh(scratch, out=scratch)
    scratch += 1
    scratch *= 0.5
    x *= scratch


def _others() -> dict[str, float]:
    stat, schedule = Path("/proc/stat"), Path("/proc/thread-self/schedstat")
    found = {}
    if stat.exists() and hasattr(os, "sched_getaffinity"):
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = (line.split() for line in stat.read_text().splitlines())
        ticks = [[int(count) for count in counts[:8]] for name, *counts in lines if name in mine]
        if len(ticks) == len(mine):  # some containers number the cores of /proc/stat anew
            user, nice, system, _idle, _wait, irq, softirq, stolen = (
                sum(column) / os.sysconf("SC_CLK_TCK") for column in zip(*ticks, strict=True)
            )
            used = resource.getrusage(resource.RUSAGE_SELF)
            found["busy"] = user + nice + system + irq + softirq - used.ru_utime - used.ru_stime
            found["stolen"] = stolen
    if schedule.exists():
        found["waited"] = int(schedule.read_text().split()[1]) / 1e9
    return found


def _usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _last_level_cache() -> int:
    sizes = [path.read_text().strip() for path in sorted(_CPU0.glob("cache/index*/size"))]
    unit = {"K": 1 << 10, "M": 1 << 20}
    return max((int(size[:-1]) * unit[size[-1]] for size in sizes if size[-1:] in unit), default=0)


def _kilohertz(name: str) -> int:
    path = _CPU0 / "cpufreq" / name
    return int(path.read_text()) if path.exists() else 0
