"""Cubins on the current CUDA context: load, bind, launch."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tilewright.artifact import Artifact, LaunchPlan, Pointer, Scalar, TensorMap
from tilewright.errors import PreconditionFailed
from tilewright.launch import driver
from tilewright.launch.arguments import Operands, check_preconditions, scalar_values
from tilewright.launch.slots import DescriptorSlot, PointerSlot, Slot, Slots
from tilewright.launch.tensor_map import Descriptor, encode
from tilewright.problem import GemmProblem

_CTYPES = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class CudaKernel:
    """A cubin loaded into the current context (device 0's primary context if there is none)."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        device = driver.ensure_context()
        _check_device(artifact.plan, device)
        library = driver.libcuda()
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        entry = artifact.plan.entry
        driver.check(library.cuModuleLoadData(ctypes.byref(self._module), artifact.binary), f"load {entry}")
        driver.check(
            library.cuModuleGetFunction(ctypes.byref(self._function), self._module, entry.encode()),
            f"find {entry} in its cubin",
        )
        driver.check(
            library.cuFuncSetAttribute(
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

    @property
    def function(self) -> ctypes.c_void_p:
        """``CUfunction``."""
        return self._function


class CudaLaunch:
    """One prepared ``cuLaunchKernelEx``."""

    def __init__(self, kernel: CudaKernel, problem: GemmProblem, operands: Operands) -> None:
        plan = kernel.artifact.plan
        self._kernel = kernel  # keeps the module loaded
        self._values = _argument_values(plan, problem, operands)
        pointers = [_address(value) for value in self._values]
        self._arguments = (ctypes.c_void_p * len(pointers))(*pointers)
        self._config = driver.LaunchConfig()
        self._config.grid[:] = plan.grid.blocks(problem)
        self._config.block[:] = plan.block
        self._config.shared_bytes = plan.dynamic_smem
        if plan.cluster != (1, 1, 1):
            self._cluster = driver.LaunchAttribute(id=driver.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            self._cluster.cluster[:] = plan.cluster
            self._config.attributes = ctypes.pointer(self._cluster)
            self._config.attribute_count = 1
        self._reference = ctypes.byref(self._config)
        self._function = kernel.function
        self._launch = driver.libcuda().cuLaunchKernelEx
        self.move = Slots(plan, operands, self._slots(plan, problem, operands)).move

    def __call__(self, stream: int = 0) -> None:
        """Enqueue on a stream handle."""
        self._config.stream = stream
        status = self._launch(self._reference, self._function, self._arguments, None)
        if status:
            driver.check(status, f"launch {self._kernel.artifact.plan.entry}")

    def _slots(self, plan: LaunchPlan, problem: GemmProblem, operands: Operands) -> list[Slot]:
        scalars = scalar_values(problem, operands)
        slots: list[Slot] = []
        for place, item in enumerate(plan.args):
            if isinstance(item, Pointer):
                slots.append(PointerSlot(item.operand, self._values[place]))
            elif isinstance(item, TensorMap):
                stride = int(scalars[f"ld{item.operand}"])
                at = functools.partial(_encode_at, item, problem, stride)
                slots.append(
                    DescriptorSlot(item.operand, at, functools.partial(self._arguments.__setitem__, place))
                )
        return slots


def _argument_values(plan: LaunchPlan, problem: GemmProblem, operands: Operands) -> list[Any]:
    scalars = scalar_values(problem, operands)
    values: list[Any] = []
    for item in plan.args:
        if isinstance(item, Pointer):
            values.append(ctypes.c_void_p(getattr(operands, item.operand)))
        elif isinstance(item, TensorMap):
            address = getattr(operands, item.operand)
            values.append(encode(item, problem, address, int(scalars[f"ld{item.operand}"])))
        else:
            values.append(_scalar(item, scalars[item.name]))
    return values


def _encode_at(item: TensorMap, problem: GemmProblem, row_stride: int, address: int) -> Descriptor:
    return encode(item, problem, address, row_stride)


def _scalar(item: Scalar, value: int | float) -> Any:
    constructor: Any = _CTYPES[item.kind]
    return constructor(int(value) if item.kind.startswith("int") else value)


def _address(value: Any) -> int:
    return value.address if isinstance(value, Descriptor) else ctypes.addressof(value)


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
