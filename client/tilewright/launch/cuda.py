"""Cubins: loaded into the current CUDA context, bound to operands, launched."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tilewright.artifact import (
    Artifact,
    CtaOrder,
    LaunchPlan,
    PackedPointer,
    Pointer,
    Repack,
    Scalar,
    TensorMap,
)
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch import driver
from tilewright.launch.arguments import Operands, check_preconditions, copy_strides, scalar_values
from tilewright.launch.cta_order import CTA_ORDERS, Order
from tilewright.launch.slots import DescriptorSlot, PointerSlot, Slot, Slots, Step, clustered, programmatic
from tilewright.launch.tensor_map import Descriptor, encode
from tilewright.schema.problem import GemmProblem

_CTYPES = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


_NEVER_CAPTURED = (
    0,
    1,
)  # the legacy default stream; a graph may capture any other one


class CudaKernel:
    """A cubin loaded into the current context (device 0's primary context if there is none).

    Attributes:
        overlap: whether launches may start while the kernel before them ends.
    """

    def __init__(self, artifact: Artifact, overlap: bool = False) -> None:
        self.artifact = artifact
        self.overlap = overlap and artifact.plan.programmatic
        self.held = False
        device = driver.ensure_context()
        _check_device(artifact.plan, device)
        entry = artifact.plan.entry
        self._module = _module(artifact.binary, entry)
        self._function = self.other(entry)
        driver.check(
            driver.libcuda().cuFuncSetAttribute(
                self._function,
                driver.FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE,
                artifact.plan.dynamic_smem,
            ),
            f"{entry}: {artifact.plan.dynamic_smem} bytes of dynamic shared memory",
        )

    def bind(self, problem: GemmProblem, operands: Operands) -> CudaLaunch:
        """Fix the arguments; see :class:`tilewright.launch.Kernel`."""
        check_preconditions(self.artifact.plan, problem, operands)
        return CudaLaunch(self, problem, operands)

    def close(self) -> None:
        """Unload the module."""
        if self._module.value:
            driver.check(driver.libcuda().cuModuleUnload(self._module), "unload a module")
            self._module.value = None

    def other(self, entry: str) -> ctypes.c_void_p:
        """``CUfunction`` of another symbol of the cubin."""
        return _function(self._module, entry)

    @property
    def function(self) -> ctypes.c_void_p:
        """``CUfunction``."""
        return self._function


class BareKernel:
    """A kernel without arguments, loaded for as long as the context lives; one warp of it by default.

    NOTE: not while a graph is captured.
    """

    def __init__(self, cubin: bytes, entry: str, ctas: int = 1, threads: int = 32) -> None:
        driver.ensure_context()
        function = _function(_module(cubin, entry), entry)
        self._step = Step(function, entry, [], ((ctas, 1, 1), (threads, 1, 1), 0), [])

    def __call__(self, stream: int = 0) -> None:
        """Enqueue on a stream handle."""
        self._step(stream)


def _module(cubin: bytes, entry: str) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    driver.check(driver.libcuda().cuModuleLoadData(ctypes.byref(module), cubin), f"load {entry}")
    return module


def _function(module: ctypes.c_void_p, entry: str) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    status = driver.libcuda().cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
    driver.check(status, f"find {entry} in its cubin")
    return function


class CudaLaunch:
    """The prepared ``cuLaunchKernelEx`` calls of one artifact: its repacks, the kernel itself, its finish.

    With a workspace it belongs to the stream of its first call: launches of two streams may run at once, and
    would count in the same semaphores.
    """

    def __init__(self, kernel: CudaKernel, problem: GemmProblem, operands: Operands) -> None:
        plan = kernel.artifact.plan
        self._kernel = kernel  # keeps the module loaded
        values = _argument_values(plan, problem, operands, kernel.other)
        shape = (plan.grid.ctas(problem), plan.block, plan.dynamic_smem)
        repacks = [
            _repack(kernel, step, problem, operands, after_another=number > 0)
            for number, step in enumerate(plan.repacks)
        ]
        attributes = [*_overlapping(kernel, bool(repacks)), *clustered(*plan.cluster)]
        main = Step(kernel.function, plan.entry, values, shape, attributes)
        self._steps = [*repacks, main]
        if plan.finish:
            rest = [value for value in values if not isinstance(value, (Descriptor, Order))]
            shape = (plan.finish.ctas(problem), plan.finish.block, 0)
            function = kernel.other(plan.finish.entry)
            self._steps.append(Step(function, plan.finish.entry, rest, shape, _overlapping(kernel, True)))
        slots = _slots(plan, problem, operands, main)
        for step, repack in zip(plan.repacks, repacks, strict=True):
            slots.append(PointerSlot(step.operand, repack.values[0]))
        self.move = Slots(plan, operands, slots).move
        self._shared = plan.workspace_bytes(problem) > 0
        self._stream: int | None = None

    def __call__(self, stream: int = 0) -> None:
        """Enqueue on a stream handle.

        Raises:
            LaunchError: the driver refused, or the launch has a workspace and belongs to another stream.
        """
        if stream != self._stream:
            self._change_stream(stream)
        for step in self._steps:
            step(stream)

    def _change_stream(self, stream: int) -> None:
        if self._shared and self._stream is not None:
            entry = self._kernel.artifact.plan.entry
            raise LaunchError(
                f"{entry} is bound to a workspace, which serves one stream; bind another one for this stream"
            )
        self._stream = stream
        self._kernel.held |= stream not in _NEVER_CAPTURED


def _repack(
    kernel: CudaKernel, step: Repack, problem: GemmProblem, operands: Operands, after_another: bool
) -> Step:
    packed = kernel.artifact.plan.packed(problem, step.operand)
    assert packed is not None
    rows, columns = step.shape(problem)
    stride = int(scalar_values(problem, operands)[f"ld{step.operand}"]) * problem.dtype.size
    values: list[Any] = [
        ctypes.c_void_p(getattr(operands, step.operand)),
        ctypes.c_void_p(operands.workspace + packed[0]),
        ctypes.c_int32(rows),
        ctypes.c_int32(problem.dtype.nbytes(columns)),
    ]
    values += [ctypes.c_int64(size) for size in (stride, packed[1], stride * rows, packed[1] * rows)]
    function = kernel.other(step.entry)
    shape = (step.ctas(problem), step.block, 0)
    return Step(function, step.entry, values, shape, _overlapping(kernel, after_another))


def _overlapping(kernel: CudaKernel, after_another: bool) -> list[driver.LaunchAttribute]:
    """Launch attributes of a step: within a launch, steps always start while the one before them ends."""
    wanted = kernel.artifact.plan.programmatic if after_another else kernel.overlap
    return programmatic() if wanted else []


def _argument_values(
    plan: LaunchPlan, problem: GemmProblem, operands: Operands, other: Callable[[str], ctypes.c_void_p]
) -> list[Any]:
    scalars = scalar_values(problem, operands) | copy_strides(plan, problem)
    values: list[Any] = []
    for item in plan.args:
        if isinstance(item, Pointer):
            values.append(ctypes.c_void_p(getattr(operands, item.operand)))
        elif isinstance(item, PackedPointer):
            packed = plan.packed(problem, item.operand)
            assert packed is not None
            values.append(ctypes.c_void_p(operands.workspace + packed[0]))
        elif isinstance(item, TensorMap):
            values.append(_tensor_map(plan, item, problem, operands))
        elif isinstance(item, CtaOrder):
            values.append(CTA_ORDERS.order(other, item.entry, plan, problem))
        else:
            values.append(_scalar(item, scalars[item.name]))
    return values


def _tensor_map(plan: LaunchPlan, item: TensorMap, problem: GemmProblem, operands: Operands) -> Descriptor:
    packed = plan.packed(problem, item.operand)
    if packed is not None:
        return encode(item, problem, operands.workspace + packed[0], packed[1])
    return encode(item, problem, getattr(operands, item.operand), _row_bytes(item, problem, operands))


def _slots(plan: LaunchPlan, problem: GemmProblem, operands: Operands, main: Step) -> list[Slot]:
    """The arguments that hold addresses of operands; copies of repacked operands have fixed addresses."""
    slots: list[Slot] = []
    for index, item in enumerate(plan.args):
        if isinstance(item, Pointer):
            slots.append(PointerSlot(item.operand, main.values[index]))
        elif isinstance(item, TensorMap) and plan.packed(problem, item.operand) is None:
            at = functools.partial(_encode_at, item, problem, _row_bytes(item, problem, operands))
            hand_over = functools.partial(main.arguments.__setitem__, index)
            slots.append(DescriptorSlot(item.operand, at, hand_over))
    return slots


def _encode_at(item: TensorMap, problem: GemmProblem, row_bytes: int, address: int) -> Descriptor:
    return encode(item, problem, address, row_bytes)


def _row_bytes(item: TensorMap, problem: GemmProblem, operands: Operands) -> int:
    size = problem.out.size if item.operand in ("c", "d") else problem.dtype.size
    return int(scalar_values(problem, operands)[f"ld{item.operand}"]) * size


def _scalar(item: Scalar, value: int | float) -> Any:
    constructor: Any = _CTYPES[item.kind]
    return constructor(int(value) if item.kind.startswith("int") else value)


def _check_device(plan: LaunchPlan, device: int) -> None:
    major, minor = driver.compute_capability(device)
    target = plan.target.removeprefix("sm_")
    exact = target.endswith("a")
    built = int(target.rstrip("a")[:-1]), int(target.rstrip("a")[-1])
    fits = built == (major, minor) if exact else built[0] == major and built[1] <= minor
    if not fits:
        raise PreconditionFailed(f"a kernel for {plan.target} cannot run on sm_{major}{minor}; tune it there")
    if driver.driver_version() < plan.preconditions.min_driver:
        raise PreconditionFailed(
            f"the driver supports CUDA {driver.driver_version()}, the kernel needs "
            f"{plan.preconditions.min_driver}; update the driver"
        )
