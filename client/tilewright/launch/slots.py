"""Pointer arguments that move: the addresses of the next call, patched into the buffers of the last.

Binding checks every rule and builds every argument; a caller that multiplies arrays of one shape again and
again only has to say where they are now.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.artifact import LaunchPlan, Operand
from tilewright.errors import PreconditionFailed
from tilewright.launch.arguments import Operands

ORDER: tuple[Operand, ...] = ("a", "b", "d", "c", "bias")
_MOST_DESCRIPTORS = 64

Addresses = tuple[int, int, int, int, int]


class Slot(Protocol):
    """One argument that holds the address of an operand."""

    operand: Operand

    def point(self, address: int) -> None:
        """Hold this address from now on."""


class PointerSlot:
    """A plain pointer."""

    __slots__ = ("cell", "operand")

    def __init__(self, operand: Operand, cell: ctypes.c_void_p) -> None:
        self.operand = operand
        self.cell = cell

    def point(self, address: int) -> None:
        """See :class:`Slot`."""
        self.cell.value = address


class DescriptorSlot:
    """A tensor map, which has the address inside: the latest ones are kept, as addresses repeat.

    Args:
        operand: what it describes.
        encode: a new descriptor for an address; has the attribute ``address``.
        hand_over: tells the argument list where the descriptor lies.
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
            PreconditionFailed: the driver refused the description.
        """
        descriptor = self._known.pop(address, None)
        if descriptor is None:
            descriptor = self._encode(address)
            if len(self._known) >= _MOST_DESCRIPTORS:
                del self._known[next(iter(self._known))]
        self._known[address] = descriptor  # NOTE: a dict keeps its order, so the first is the least recent
        self._hand_over(descriptor.address)


class Slots:
    """Every argument of one bound launch that moves with its operands.

    NOTE: not for two threads at once: both would write to one argument buffer.
    """

    def __init__(self, plan: LaunchPlan, operands: Operands, slots: Sequence[Slot]) -> None:
        needed = plan.preconditions
        aligned = {"a": needed.align_a, "b": needed.align_b, "c": needed.align_d, "d": needed.align_d}
        self._entry = plan.entry
        self._rules = [(place, aligned[name]) for place, name in enumerate(ORDER) if aligned.get(name, 1) > 1]
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
            raise PreconditionFailed(f"{self._entry}: an operand or the result has no memory")
        for place, align in self._rules:
            if addresses[place] % align:
                raise PreconditionFailed(
                    f"{self._entry}: the address of {ORDER[place]} must be a multiple of {align} bytes"
                )
        before = self._at
        self._at = (-1, -1, -1, -1, -1)  # NOTE: a refused descriptor must not leave half a move unnoticed
        for place, point in self._slots:
            if addresses[place] != before[place]:
                point(addresses[place])
        self._at = addresses
