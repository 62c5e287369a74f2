"""One GEMM on request, on operands that came over the wire."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import DeviceUnavailable, InvalidProblem
from tilewright.launch import Kernel
from tilewright.problem import GemmProblem
from tuner.arrays import storage_type
from tuner.devices.base import Device, Tensors, VendorChoice
from tuner.operands import bind


def run_gemm(
    device: Device,
    kernel: Kernel | None,
    problem: GemmProblem,
    inputs: dict[str, bytes],
    scalars: tuple[float, float],
) -> tuple[bytes, float, str]:
    """Compute D from raw operand bytes.

    Args:
        kernel: the tuned kernel, or None for the vendor library.
        inputs: little-endian bytes of ``a``, ``b`` and, where the problem has them, ``c``, ``bias``.
        scalars: alpha and beta.

    Returns:
        The bytes of D, microseconds on the device, and what ran.

    Raises:
        InvalidProblem: an operand is missing or has the wrong number of bytes.
        LaunchError: it does not run.
        DeviceUnavailable: no kernel is given and the vendor library has none.
    """
    tensors = _upload(device, problem, inputs, scalars)
    if kernel is None:
        choice = _vendor_choice(device, problem, tensors)
        launches, ran = choice.launches, choice.name
        keep: object = choice
    else:
        bound = bind(device, kernel, problem, [tensors])
        launches, ran, keep = bound.launches, kernel.artifact.plan.entry, bound
    device.synchronize()
    micros = device.timer(launches)()
    device.synchronize()
    del keep
    d = tensors.d
    return (d.get() if hasattr(d, "get") else d).tobytes(), micros, ran


def _vendor_choice(device: Device, problem: GemmProblem, tensors: Tensors) -> VendorChoice:
    if not all(scalar % 1 == 0 for scalar in (tensors.alpha, tensors.beta) if problem.dtype.is_integer):
        raise InvalidProblem(f"alpha and beta must be whole numbers for {problem.dtype}")
    choices = device.vendor(problem, [tensors])
    if not choices:
        raise DeviceUnavailable(f"the vendor library does not compute {problem}; tune it first (POST /tune)")
    return choices[0]


def _upload(
    device: Device, problem: GemmProblem, inputs: dict[str, bytes], scalars: tuple[float, float]
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
        expected = math.prod(shapes[name]) * dtype.size
        if len(inputs.get(name, b"")) != expected:
            raise InvalidProblem(f"{name} must have {expected} bytes for shape {shapes[name]} of {dtype}")
        host = np.frombuffer(inputs[name], dtype=storage_type(dtype)).reshape(shapes[name])
        arrays[name] = device.xp.asarray(host)
    d = device.xp.empty((problem.batch, problem.m, problem.n), dtype=storage_type(problem.out))
    return Tensors(d=d, alpha=scalars[0], beta=scalars[1], **arrays)
