"""One GEMM on request, on operands that came over the wire."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import DeviceUnavailable, InvalidProblem
from tilewright.launch import Kernel, Launch
from tilewright.problem import DType, GemmProblem
from tuner.arrays import storage_type
from tuner.devices.base import Device, Tensors, VendorChoice
from tuner.operands import bind
from tuner.regions import Region

_ALIGNED = 16


@dataclasses.dataclass(frozen=True, slots=True)
class GemmRun:
    """How a GEMM went: microseconds of the kernel, what ran, and the seconds around it."""

    micros: float
    ran: str
    upload_s: float
    download_s: float


def run_gemm(
    device: Device,
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
    start = time.perf_counter()
    out = _mapped("d", regions, (problem.batch, problem.m, problem.n), problem.out, writable=True)
    tensors = _upload(device, problem, regions, scalars)
    launches, ran, held = _launches(device, kernel, problem, tensors)
    device.synchronize()
    uploaded = time.perf_counter()
    micros = device.timer(launches)()
    device.synchronize()
    ended = time.perf_counter()
    del held
    _download(tensors.d, out)
    return GemmRun(micros, ran, uploaded - start, time.perf_counter() - ended)


def _launches(
    device: Device, kernel: Kernel | None, problem: GemmProblem, tensors: Tensors
) -> tuple[Sequence[Launch], str, object]:
    """What to launch, its name, and what must be held until it ran."""
    if kernel is None:
        choice = _vendor_choice(device, problem, tensors)
        return choice.launches, choice.name, choice
    bound = bind(device, kernel, problem, [tensors])
    return bound.launches, kernel.artifact.plan.entry, bound


def _vendor_choice(device: Device, problem: GemmProblem, tensors: Tensors) -> VendorChoice:
    if not all(scalar % 1 == 0 for scalar in (tensors.alpha, tensors.beta) if problem.dtype.is_integer):
        raise InvalidProblem(f"alpha and beta must be whole numbers for {problem.dtype}")
    choices = device.vendor(problem, [tensors])
    if not choices:
        raise DeviceUnavailable(f"the vendor library does not compute {problem}; tune it first (POST /tune)")
    return choices[0]


def _upload(
    device: Device, problem: GemmProblem, regions: Mapping[str, Region], scalars: tuple[float, float]
) -> Tensors:
    packing = problem.dtype.packing
    shapes = {
        "a": (problem.batch, problem.a_shape[0], problem.a_shape[1] // packing),
        "b": (problem.batch, problem.b_shape[0], problem.b_shape[1] // packing),
        "c": (problem.batch, problem.m, problem.n),
        "bias": (problem.n,),
    }
    wanted = ["a", "b", *(["c"] if problem.has_c else []), *(["bias"] if problem.has_bias else [])]
    arrays = {}
    for name in wanted:
        dtype = problem.dtype if name in "ab" else problem.out
        array = device.xp.asarray(_mapped(name, regions, shapes[name], dtype))
        # NOTE: on the host this is the caller's memory itself, which may begin anywhere.
        arrays[name] = array.copy() if device.address(array) % _ALIGNED else array
    d = device.xp.empty((problem.batch, problem.m, problem.n), dtype=storage_type(problem.out))
    return Tensors(d=d, alpha=scalars[0], beta=scalars[1], **arrays)


def _mapped(
    name: str, regions: Mapping[str, Region], shape: tuple[int, ...], dtype: DType, *, writable: bool = False
) -> Any:
    expected = math.prod(shape) * dtype.size
    if name not in regions or regions[name].size != expected:
        raise InvalidProblem(f"{name} must have {expected} bytes for shape {shape} of {dtype}")
    region = regions[name].map(writable=writable)
    return region.view(storage_type(dtype)).reshape(shape)


def _download(d: Any, out: Any) -> None:
    if hasattr(d, "get"):
        d.get(out=out)
    else:
        out[...] = d
