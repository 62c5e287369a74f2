"""Operands of a problem on a device: random or integer data, rotated sets, launches bound to them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

from tilewright.errors import LaunchError
from tilewright.launch import Kernel, Launch, Operands
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.encoding import encode, storage_type

_MOST_SETS = 128
_MOST_BYTES = 16 << 30
_GUARD_BYTES = 4096  # behind each workspace
_SLICE, _FEWEST_ROWS = 2**25, 128  # of D, compared at a time: products of fewer rows are slow
_INTEGER_SCALE = {4: 2.5, 1: 1.0}  # by bits
_BYTE_SCALE = 40.0
_DENSE_K = (
    2**16
)  # with a larger k, products of -1, 0 and 1 could add up to integers that float16 does not hold


@dataclasses.dataclass(frozen=True, slots=True)
class BoundSets:
    """Launches of a kernel, one for each operand set, and the workspace that they need; bytes before
    ``front`` must be zero."""

    launches: Sequence[Launch]
    workspace: Any
    front: int


def why_too_large(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason ``device`` has too little memory to tune the problem, or None.

    Beside the operands, the correctness check keeps three references in float64, and needs the operands in
    float64, B of batches twice, and some eight arrays of the size of a slice of D.
    """
    d, copies = problem.m * problem.n, 1 if problem.batch == 1 else 2
    operands = (problem.m + copies * problem.n) * problem.k
    of_slice = problem.batch * row_slices(problem)[0].stop * problem.n
    needed = 4 * problem.total_bytes + 8 * (problem.batch * (3 * d + operands) + 8 * of_slice)
    if needed > device.memory_bytes:
        return (
            f"tuning {problem} takes about {needed} bytes of memory, the device has {device.memory_bytes};"
            " tune a smaller one"
        )
    return None


def row_slices(problem: GemmProblem) -> list[slice]:
    """Slices of the rows of D of some 2^25 elements, but 128 rows at least, that together are all of D."""
    rows = max(_FEWEST_ROWS, _SLICE // (problem.batch * problem.n))
    return [slice(first, min(first + rows, problem.m)) for first in range(0, problem.m, rows)]


@dataclasses.dataclass(frozen=True, slots=True)
class Scratch:
    """Workspace memory: bytes before ``front`` must be zero, bytes from ``end`` on belong to no kernel."""

    memory: Any
    front: int
    end: int


def make_tensors(
    device: Device, problem: GemmProblem, seed: int, data: Literal["normal", "integer"]
) -> Tensors:
    """Fresh operands: N(0, 1) values, or integers in -1 .. 1 whose products add up exactly.

    Integer types take N(0, 1) times 40, 2.5 for 4 bits, rounded and clipped, so that all bits are used.

    Raises:
        LaunchError: they do not fit into the device's memory.
    """
    xp = device.xp
    random = xp.random.default_rng(seed)

    def draw(shape: tuple[int, ...], dtype: DType) -> Any:
        if data == "integer":
            values = random.integers(-1, 2, size=shape).astype("float32")
            if problem.k > _DENSE_K:
                values *= random.random(shape, dtype="float32") < math.sqrt(_DENSE_K / problem.k)
            return encode(xp, values, dtype)
        scale = _INTEGER_SCALE.get(dtype.bits, _BYTE_SCALE) if dtype.is_integer else 1.0
        return encode(xp, scale * random.standard_normal(shape, dtype="float32"), dtype)

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

    Launches that alternate between the sets find no input in the cache. Kept until :func:`forget`.
    """
    wanted = -(-2 * device.spec.l2_bytes // problem.operand_bytes)
    affordable = max(1, min(_MOST_BYTES, device.free_bytes() // 2) // problem.total_bytes)
    count = max(1, min(max(2, wanted), _MOST_SETS, affordable))
    return tuple(make_tensors(device, problem, seed, "normal") for seed in range(count))


def scratch(device: Device, kernels: Sequence[Kernel], problem: GemmProblem) -> Scratch:
    """Workspace for any of the kernels, one at a time; the bytes that must be zero are zero and stay so.

    For every kernel the bytes that must be zero end at the same address, so that the rest is the same memory
    for all: the address of a buffer can change a kernel's time by more than the difference that a race looks
    for.

    Raises:
        LaunchError: it does not fit into the device's memory.
    """
    plans = [kernel.artifact.plan for kernel in kernels]
    front = max((plan.workspace_zero_bytes(problem) for plan in plans), default=0)
    rest = max(
        (plan.workspace_bytes(problem) - plan.workspace_zero_bytes(problem) for plan in plans), default=0
    )
    end = front + rest
    if end:
        _require_memory(device, end + _GUARD_BYTES)
    return Scratch(device.xp.zeros(end + _GUARD_BYTES, dtype="uint8"), front, end)


def forget() -> None:
    """Release the operand sets of an earlier problem."""
    rotated_sets.cache_clear()


def bind(
    device: Device,
    kernel: Kernel,
    problem: GemmProblem,
    sets: Sequence[Tensors],
    shared: Scratch | None = None,
) -> BoundSets:
    """Bind a kernel to each operand set, all with one workspace: ``shared``, or a new one."""
    plan = kernel.artifact.plan
    shared = shared or scratch(device, [kernel], problem)
    start = device.address(shared.memory) + shared.front - plan.workspace_zero_bytes(problem)
    address = start if plan.workspace_bytes(problem) else 0
    launches = [kernel.bind(problem, operands(device, tensors, address)) for tensors in sets]
    return BoundSets(launches, shared.memory, shared.front)


def bind_all(
    device: Device, kernels: Sequence[Kernel], problem: GemmProblem, sets: Sequence[Tensors]
) -> list[BoundSets]:
    """Bind kernels that are compared to each operand set, all with one workspace.

    Kernels take turns: what is allocated first fills the holes of the heap, on more pages than what comes
    later, so that a kernel bound before another would be called more slowly, by 1 to 2 % at 5 us.
    """
    shared = scratch(device, kernels, problem)
    bound = [[bind(device, kernel, problem, [one], shared).launches[0] for kernel in kernels] for one in sets]
    return [BoundSets(launches, shared.memory, shared.front) for launches in zip(*bound, strict=True)]


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
        raise LaunchError(
            f"{size} bytes do not fit, the device has {device.free_bytes()} free; use a smaller problem"
        )
