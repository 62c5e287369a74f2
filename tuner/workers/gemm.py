"""``Gemms``: runs GEMMs on request, on operands in shared memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.errors import DeviceUnavailable, InvalidProblem
from tilewright.launch import Kernel, Launch
from tilewright.schema.problem import DType, GemmProblem, reads_operands
from tuner.devices.base import Device, Tensors
from tuner.measure.correctness import finished
from tuner.measure.encoding import encode, storage_type
from tuner.measure.operands import bind
from tuner.workers.shared_memory import Mappings, Region


@dataclasses.dataclass(frozen=True, slots=True)
class GemmRun:
    """The result of a GEMM.

    Attributes:
        micros: microseconds of the kernel.
        ran: the kernel's entry, the vendor library, or ``elementwise`` where nothing is multiplied.
        parts_s: the seconds of its steps by name: ``map`` the memory of the request, ``upload`` operands,
            ``bind`` the kernel to them, ``launch`` it and wait for its end, ``download`` the result.
    """

    micros: float
    ran: str
    parts_s: dict[str, float]


class Gemms:
    """Runs GEMMs on request on one device; the memory of requests stays mapped for later requests."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._mappings = Mappings(device)

    def trim(self) -> None:
        """Unmap memory beyond the limits, and memory that its owner has released."""
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
        """Compute D from raw operand bytes in shared memory.

        Args:
            kernel: the tuned kernel, or None for the vendor library.
            regions: the little-endian bytes of ``a``, ``b``, and of ``c`` and ``bias`` if the problem has
                them, and the bytes to write ``d`` to.
            scalars: alpha and beta.

        Raises:
            InvalidProblem: an operand is missing or has the wrong number of bytes.
            LaunchError: the kernel does not run.
            DeviceUnavailable: no kernel is given and the vendor library does not compute the problem.
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
            micros = device.once(launch) if launch else _without_product(device, problem, tensors)
        del bound
        with _timed(parts, "download"):
            device.download(tensors.d, out)
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
            taken[name] = device.upload(array)
        return Tensors(**taken, d=device.result_buffer(out), alpha=scalars[0], beta=scalars[1])
    finally:
        device.synchronize()  # NOTE: also if memory ran out, else copies would go on into freed memory


def _launch(
    device: Device, kernel: Kernel | None, problem: GemmProblem, tensors: Tensors
) -> tuple[Launch | None, str, object]:
    """The launch, None if nothing is multiplied; its name, and an object that must live until it has run."""
    if not reads_operands(problem, tensors.alpha):
        return None, "elementwise", None
    if kernel:
        bound = bind(device, kernel, problem, [tensors])
        return bound.launches[0], kernel.artifact.plan.entry, bound
    if not all(scalar % 1 == 0 for scalar in (tensors.alpha, tensors.beta) if problem.dtype.is_integer):
        raise InvalidProblem(f"alpha and beta must be whole numbers for {problem.dtype}")
    choice = device.vendor_default(problem, tensors)
    if choice is None:
        raise DeviceUnavailable(f"the vendor library does not compute {problem}; tune it first (POST /tune)")
    return choice.launches[0], choice.name, choice


def _without_product(device: Device, problem: GemmProblem, tensors: Tensors) -> float:
    """Compute D = act(beta * C + bias) and return the microseconds."""
    xp, start = device.xp, time.perf_counter()
    product = xp.zeros(tensors.d.shape, "float64")
    tensors.d[:] = encode(xp, finished(xp, product, problem, tensors), problem.out)
    device.synchronize()
    return (time.perf_counter() - start) * 1e6


@contextlib.contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    parts[name] = time.perf_counter() - start
