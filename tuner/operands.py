"""Operands of a problem on a device: random or integer data, rotated sets, bound launches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

from tilewright.errors import LaunchError
from tilewright.launch import Kernel, Launch, Operands
from tilewright.problem import GemmProblem
from tuner.arrays import encode, storage_type
from tuner.devices.base import Device, Tensors

_MOST_SETS = 64
_MOST_BYTES = 16 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class BoundSets:
    """A kernel bound to several operand sets in turn, and the workspace that must outlive it."""

    launches: Sequence[Launch]
    workspace: Any


def make_tensors(
    device: Device, problem: GemmProblem, seed: int, data: Literal["normal", "integer"]
) -> Tensors:
    """Fresh operands: N(0, 1) values, or integers in -1 .. 1 whose products add up exactly.

    Raises:
        LaunchError: they do not fit in the device's memory.
    """
    xp = device.xp
    random = xp.random.default_rng(seed)

    def draw(shape: tuple[int, ...], dtype: Any) -> Any:
        if data == "integer":
            return encode(xp, random.integers(-1, 2, size=shape).astype("float32"), dtype)
        return encode(xp, random.standard_normal(shape, dtype="float32"), dtype)

    _require_memory(device, problem.total_bytes + 8 * problem.m * problem.k)
    shape_d = (problem.batch, problem.m, problem.n)
    return Tensors(
        a=draw((problem.batch, *problem.a_shape), problem.dtype),
        b=draw((problem.batch, *problem.b_shape), problem.dtype),
        d=xp.zeros(shape_d, dtype=storage_type(problem.out)),
        c=draw(shape_d, problem.out) if problem.has_c else None,
        bias=draw((problem.n,), problem.out) if problem.has_bias else None,
        beta=1.0 if problem.has_c else 0.0,
    )


@functools.lru_cache(maxsize=1)
def rotated_sets(device: Device, problem: GemmProblem) -> tuple[Tensors, ...]:
    """Operand sets whose inputs together are at least twice the last-level cache, two at least.

    Launches that take them in turn find no input in the cache. Kept for the latest problem.
    """
    wanted = -(-2 * device.spec.l2_bytes // problem.operand_bytes)
    affordable = max(1, min(_MOST_BYTES, device.free_bytes() // 2) // problem.total_bytes)
    count = max(1, min(max(2, wanted), _MOST_SETS, affordable))
    return tuple(make_tensors(device, problem, seed, "normal") for seed in range(count))


def scratch(device: Device, size: int) -> Any:
    """``size`` zero bytes on the device.

    Raises:
        LaunchError: they do not fit.
    """
    _require_memory(device, size)
    return device.xp.zeros(max(size, 1), dtype="uint8")


def bind(
    device: Device, kernel: Kernel, problem: GemmProblem, sets: Sequence[Tensors], shared: Any = None
) -> BoundSets:
    """Bind a kernel to each set; all share one workspace, whose leading part is zeroed.

    ``shared`` is memory from :func:`scratch` that serves instead where the kernel needs no zeros.
    """
    plan = kernel.artifact.plan
    size = plan.workspace_bytes(problem)
    if shared is None or plan.workspace_zero_bytes(problem) or size > shared.nbytes:
        shared = scratch(device, size)
    address = device.address(shared) if size else 0
    launches = [kernel.bind(problem, operands(device, tensors, address)) for tensors in sets]
    return BoundSets(launches, shared)


def operands(device: Device, tensors: Tensors, workspace: int = 0) -> Operands:
    """Addresses of the tensors."""
    return Operands(
        a=device.address(tensors.a),
        b=device.address(tensors.b),
        d=device.address(tensors.d),
        c=device.address(tensors.c) if tensors.c is not None else 0,
        bias=device.address(tensors.bias) if tensors.bias is not None else 0,
        workspace=workspace,
        alpha=tensors.alpha,
        beta=tensors.beta,
    )


def _require_memory(device: Device, size: int) -> None:
    if size > device.free_bytes():
        raise LaunchError(f"{size} bytes do not fit in the {device.free_bytes()} free bytes of the device")
