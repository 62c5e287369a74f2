"""The CPU as a device: NumPy arrays, a monotonic clock, NumPy's BLAS as the vendor library."""

from __future__ import annotations

import functools
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.launch import Launch
from tilewright.launch.host import cpu_info, host_arch
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Telemetry, Tensors, VendorChoice

_CPU0 = Path("/sys/devices/system/cpu/cpu0")
_ALIGNED = 16
_GELU_INNER = math.sqrt(2.0 / math.pi)


def query_host() -> DeviceSpec:
    """This machine's CPU: the threads this process may use, memory and last-level cache in bytes."""
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
    """Implements :class:`tuner.devices.base.Device` for the CPU."""

    def __init__(self) -> None:
        self.spec = query_host()
        self.driver = f"{platform.system()} {platform.release()}"
        self.xp: Any = np

    def address(self, array: Any) -> int:
        """The address of an array's first byte."""
        return int(array.ctypes.data)

    def synchronize(self) -> None:
        """Nothing to wait for: a host launch returns when its result stands."""

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
        """As :meth:`timer`."""
        return self.timer([launch])()

    def pause(self, stream: int = 0) -> None:
        """Nothing: launches end before they return."""

    def telemetry(self) -> Telemetry:
        """The clock of the first core where the kernel tells it; no power."""
        kilohertz = _kilohertz("scaling_cur_freq")
        return Telemetry(mhz=kilohertz / 1000 if kilohertz else None)

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """NumPy's BLAS, as one algorithm; none for types that no BLAS has."""
        if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return []
        return [VendorChoice("numpy", [NumpyGemm(problem, tensors) for tensors in sets], blas_detail())]

    def vendor_pick(self, problem: GemmProblem, tensors: Tensors) -> VendorChoice | None:
        """NumPy's BLAS; None for types that no BLAS has."""
        return next(iter(self.vendor(problem, [tensors])), None)

    def pin(self, memory: Any) -> bool:  # noqa: ARG002
        """Nothing is copied."""
        return False

    def unpin(self, memory: Any) -> None:
        """Nothing was pinned."""

    def take(self, array: Any) -> Any:
        """The array itself, or a copy where it begins anywhere."""
        return array.copy() if self.address(array) % _ALIGNED else array

    def room(self, out: Any) -> Any:
        """The place itself, or another one where it begins anywhere."""
        return np.empty_like(out) if self.address(out) % _ALIGNED else out

    def give(self, made: Any, out: Any) -> None:
        """Copy, where it lies elsewhere."""
        if made is not out:
            out[...] = made

    def free_bytes(self) -> int:
        """Memory that can still be allocated; all of it where the operating system does not tell."""
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
        self._scratch = np.empty_like(tensors.d) if _needs_scratch(problem) else None

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
    """Name and version of the BLAS that NumPy was built with, and the threads this process may use."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return {
        "blas": str(blas.get("name", "unknown")),
        "version": str(blas.get("version", "unknown")),
        "numpy": np.__version__,
        "threads": _usable_threads(),
    }


def _needs_scratch(problem: GemmProblem) -> bool:
    return problem.has_c or problem.activation is Activation.GELU


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
