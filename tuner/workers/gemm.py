"""GEMMs on request, on operands that came over the wire."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.errors import DeviceUnavailable, InvalidProblem
from tilewright.launch import Kernel, Launch
from tilewright.schema.problem import DType, GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.encoding import storage_type
from tuner.measure.operands import bind
from tuner.workers.shared_memory import Mappings, Region


@dataclasses.dataclass(frozen=True, slots=True)
class GemmRun:
    """How a GEMM went.

    Attributes:
        micros: microseconds of the kernel.
        ran: what ran.
        parts_s: the seconds of its steps by name: ``map`` the memory of the request, ``upload`` operands,
            ``bind`` the kernel to them, ``launch`` it and wait for its end, ``download`` the result.
    """

    micros: float
    ran: str
    parts_s: dict[str, float]


class Gemms:
    """Runs GEMMs on request on one device; the memory of requests stays mapped for those that follow."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._mappings = Mappings(device)

    def trim(self) -> None:
        """Unmap what is too much or given up by its owner."""
        self._mappings.trim()

    def close(self) -> None:
        """Unmap everything."""
        self._mappings.close()

    def run(
        self,
        kernel: Kernel | None,
        problem: GemmProblem,
        regions: Mapping[str, Region],
        scalars: tuple[float, float],
    ) -> GemmRun:
        """Compute D from raw operand bytes, where they lie.

        Args:
            kernel: the tuned kernel, or None for the vendor library.
            regions: where the little-endian bytes are: ``a``, ``b`` and, where the problem has them, ``c``,
                ``bias``; and where those of ``d`` go.
            scalars: alpha and beta.

        Raises:
            InvalidProblem: an operand is missing or has the wrong number of bytes.
            LaunchError: it does not run.
            DeviceUnavailable: no kernel is given and the vendor library has none.
        """
        device, parts = self._device, dict[str, float]()
        with _timed(parts, "map"):
            arrays = self._arrays(problem, regions)
            out = arrays.pop("d")
        with _timed(parts, "upload"):
            tensors = _upload(device, arrays, out, scalars)
        with _timed(parts, "bind"):
            launch, ran, bound = _launch(device, kernel, problem, tensors)
            device.synchronize()
        with _timed(parts, "launch"):
            micros = device.once(launch)
        del bound
        with _timed(parts, "download"):
            device.give(tensors.d, out)
        return GemmRun(micros, ran, parts)

    def _arrays(self, problem: GemmProblem, regions: Mapping[str, Region]) -> dict[str, Any]:
        shapes = _shapes(problem)
        for name, (dtype, shape) in shapes.items():
            expected = math.prod(shape) * dtype.size
            if name not in regions or regions[name].size != expected:
                raise InvalidProblem(f"{name} must have {expected} bytes for shape {shape} of {dtype}")
        arrays = self._mappings.arrays({name: regions[name] for name in shapes})
        return {
            name: arrays[name].view(storage_type(dtype)).reshape(shape)
            for name, (dtype, shape) in shapes.items()
        }


def _shapes(problem: GemmProblem) -> dict[str, tuple[DType, tuple[int, ...]]]:
    """Type and shape of each operand and of ``d``, packed types in bytes."""
    (a_rows, a_columns), (b_rows, b_columns) = problem.a_shape, problem.b_shape
    packing, d = problem.dtype.packing, (problem.batch, problem.m, problem.n)
    found: dict[str, tuple[DType, tuple[int, ...]]] = {
        "a": (problem.dtype, (problem.batch, a_rows, a_columns // packing)),
        "b": (problem.dtype, (problem.batch, b_rows, b_columns // packing)),
        "d": (problem.out, d),
    }
    found |= {"c": (problem.out, d)} if problem.has_c else {}
    return found | ({"bias": (problem.out, (problem.n,))} if problem.has_bias else {})


def _upload(device: Device, arrays: Mapping[str, Any], out: Any, scalars: tuple[float, float]) -> Tensors:
    taken = {}
    try:
        for name, array in arrays.items():
            taken[name] = device.take(array)
        return Tensors(**taken, d=device.room(out), alpha=scalars[0], beta=scalars[1])
    finally:
        device.synchronize()  # NOTE: also where memory ran out, else copies would go on into what is free


def _launch(
    device: Device, kernel: Kernel | None, problem: GemmProblem, tensors: Tensors
) -> tuple[Launch, str, object]:
    """What to launch, its name, and what must be held until it ran."""
    if kernel:
        bound = bind(device, kernel, problem, [tensors])
        return bound.launches[0], kernel.artifact.plan.entry, bound
    if not all(scalar % 1 == 0 for scalar in (tensors.alpha, tensors.beta) if problem.dtype.is_integer):
        raise InvalidProblem(f"alpha and beta must be whole numbers for {problem.dtype}")
    choice = device.vendor_pick(problem, tensors)
    if choice is None:
        raise DeviceUnavailable(f"the vendor library does not compute {problem}; tune it first (POST /tune)")
    return choice.launches[0], choice.name, choice


@contextlib.contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    parts[name] = time.perf_counter() - start
