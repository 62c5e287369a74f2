"""``Step``, one ``cuLaunchKernelEx`` call, and ``Slots``, its arguments that hold addresses of operands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.artifact import LaunchPlan, Operand
from tilewright.errors import PreconditionFailed
from tilewright.launch import driver
from tilewright.launch.arguments import Operands
from tilewright.launch.tensor_map import Descriptor
from tilewright.schema.problem import DType


class Step:
    """One ``cuLaunchKernelEx``.

    Attributes:
        values: the arguments.
        arguments: the addresses of the arguments.
    """

    def __init__(
        self,
        function: ctypes.c_void_p,
        entry: str,
        values: list[Any],
        shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
        attributes: list[driver.LaunchAttribute],
    ) -> None:
        self._function, self._entry, self.values = function, entry, values
        pointers = [_address(value) for value in values]
        self.arguments = (ctypes.c_void_p * len(pointers))(*pointers)
        self._attributes = (driver.LaunchAttribute * len(attributes))(*attributes)
        self._config = driver.LaunchConfig(attributes=self._attributes, attribute_count=len(attributes))
        self._config.grid[:], self._config.block[:], self._config.shared_bytes = shape
        self._reference = ctypes.byref(self._config)
        self._launch = driver.libcuda().cuLaunchKernelEx

    def __call__(self, stream: int) -> None:
        self._config.stream = stream
        status = self._launch(self._reference, self._function, self.arguments, None)
        if status:
            driver.check(status, f"launch {self._entry}")


def programmatic() -> list[driver.LaunchAttribute]:
    """Launch attributes of a kernel that may start while the previous kernel ends."""
    kind = driver.LAUNCH_ATTRIBUTE_PROGRAMMATIC_SERIALIZATION
    return [driver.LaunchAttribute(kind, value=(1, 0, 0))]


def clustered(x: int, y: int = 1, z: int = 1) -> list[driver.LaunchAttribute]:
    """Launch attributes of a kernel with clusters of x, y, z CTAs."""
    if (x, y, z) == (1, 1, 1):
        return []
    return [driver.LaunchAttribute(driver.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value=(x, y, z))]


def _address(value: Any) -> int:
    return value.address if isinstance(value, Descriptor) else ctypes.addressof(value)


ORDER: tuple[Operand, ...] = ("a", "b", "d", "c", "bias")
_MOST_DESCRIPTORS = 64

Addresses = tuple[int, int, int, int, int]


class Slot(Protocol):
    """An argument that holds the address of an operand."""

    operand: Operand

    def point(self, address: int) -> None:
        """Set the address."""


class PointerSlot:
    """A plain pointer."""

    __slots__ = ("cell", "operand")

    def __init__(self, operand: Operand, cell: ctypes.c_void_p) -> None:
        self.operand = operand
        self.cell = cell

    def point(self, address: int) -> None:
        self.cell.value = address


class DescriptorSlot:
    """A tensor map that contains an address. The latest descriptors are kept, because addresses repeat.

    Args:
        operand: the operand of the tensor map.
        encode: returns a descriptor for an address; its own address is ``.address``.
        hand_over: writes the address of a descriptor to the argument list.
    """

    __slots__ = ("_encode", "_hand_over", "_known", "operand")

    def __init__(
        self, operand: Operand, encode: Callable[[int], Any], hand_over: Callable[[int], None]
    ) -> None:
        self.operand = operand
        self._encode, self._hand_over = encode, hand_over
        self._known: dict[int, Any] = {}

    def point(self, address: int) -> None:
        """See :class:`Slot`.

        Raises:
            PreconditionFailed: the driver refused the tensor map.
        """
        descriptor = self._known.pop(address, None)
        if descriptor is None:
            descriptor = self._encode(address)
            if len(self._known) >= _MOST_DESCRIPTORS:
                del self._known[next(iter(self._known))]
        self._known[address] = descriptor  # NOTE: a dict keeps its order, so the first is the least recent
        self._hand_over(descriptor.address)


class Slots:
    """The arguments of a cached launch that hold addresses of operands.

    NOTE: not for two threads at once: both would write to one argument buffer.
    """

    def __init__(self, plan: LaunchPlan, operands: Operands, slots: Sequence[Slot]) -> None:
        needed = plan.preconditions
        aligned = {"a": needed.align_a, "b": needed.align_b, "c": needed.align_d, "d": needed.align_d}
        aligned["bias"] = DType(plan.serves.out_dtype).size
        self._entry = plan.entry
        self._rules = [(index, aligned[name]) for index, name in enumerate(ORDER) if aligned.get(name, 1) > 1]
        self._slots = [(ORDER.index(slot.operand), slot.point) for slot in slots if slot.operand in ORDER]
        self._at: Addresses = tuple(getattr(operands, name) for name in ORDER)
        self._needed = tuple(
            name in ORDER[:3] or address != 0 for name, address in zip(ORDER, self._at, strict=True)
        )

    def move(self, a: int, b: int, d: int, c: int = 0, bias: int = 0) -> None:
        """Point the arguments at other operands of the same shapes and strides.

        Raises:
            PreconditionFailed: an operand has no memory, or an address is less aligned than the kernel needs.
        """
        addresses = (a, b, d, c, bias)
        if addresses != self._at:
            self._patch(addresses)

    def _patch(self, addresses: Addresses) -> None:
        if any(needed and not address for needed, address in zip(self._needed, addresses, strict=True)):
            raise PreconditionFailed(f"{self._entry}: operands and result must have memory, not address 0")
        for index, align in self._rules:
            if addresses[index] % align:
                raise PreconditionFailed(
                    f"{self._entry}: the address of {ORDER[index]} must be a multiple of {align} bytes"
                )
        before = self._at
        # NOTE: a refused descriptor leaves the arguments partly moved: the old addresses must not count.
        self._at = (-1, -1, -1, -1, -1)
        for index, point in self._slots:
            if addresses[index] != before[index]:
                point(addresses[index])
        self._at = addresses
