"""What a device offers to checking, measuring and racing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernels.base.tile_hint import TileHint
from tilewright.launch import Launch
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem


@dataclasses.dataclass(frozen=True, slots=True)
class Telemetry:
    """Core clock in MHz and power in watts right now; None where the device does not tell."""

    mhz: float | None = None
    watts: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Tensors:
    """Operands of one GEMM as arrays of the device's array module, in storage types.

    bfloat16 and the 8-bit floats are stored as bit patterns, packed types as bytes; see
    :mod:`tuner.measure.encoding`. Shapes are (batch, rows, columns) as stored, (n,) for the bias.
    """

    a: Any
    b: Any
    d: Any
    c: Any = None
    bias: Any = None
    alpha: float = 1.0
    beta: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class VendorChoice:
    """One algorithm of the vendor library, ready to run.

    Attributes:
        name: ``cublaslt``, ``cublas``, ``numpy`` ...
        launches: one launch per operand set.
        detail: what the library tells of the algorithm.
        hint: the algorithm's tile hint, or None if the library tells too little.
    """

    name: str
    launches: Sequence[Launch]
    detail: dict[str, Any]
    hint: TileHint | None = None


class Device(Protocol):
    """One device, owned by the process that talks to it.

    Attributes:
        spec: what it is.
        driver: name and version of driver or operating system.
        xp: the array module, NumPy or CuPy.
    """

    spec: DeviceSpec
    driver: str
    xp: Any

    def __hash__(self) -> int:
        """By identity: operands are cached per device."""

    def address(self, array: Any) -> int:
        """The address of an array's first byte."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run.

        Raises:
            LaunchError: something enqueued failed; ``sticky`` where the context is lost.
        """

    def timer(self, launches: Sequence[Launch]) -> Callable[[], float]:
        """A function that runs all launches once, in order, and returns microseconds per launch.

        On CUDA the launches are captured in one graph and timed with events around its replay; on
        the host they run in a loop around a monotonic clock.
        """

    def once(self, launch: Launch) -> float:
        """Run one launch once, now, and wait for its end: microseconds. For GEMMs on request, whose kernel is
        timed in passing."""

    def pause(self, stream: int = 0) -> None:
        """Enqueue a step that does nothing, after the launch before it has ended; the next one starts when
        it ends itself. The first call is not for a graph that is being captured."""

    def telemetry(self) -> Telemetry:
        """Clock and power now."""

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """Every algorithm the vendor library proposes for the problem, ready to be timed; none where it
        does not compute such a problem."""

    def vendor_pick(self, problem: GemmProblem, tensors: Tensors) -> VendorChoice | None:
        """What the vendor library runs by itself; None where it does not compute such a problem."""

    def pin(self, memory: Any) -> bool:
        """Make copies from and to host memory, a NumPy array, go at full speed; False where that is not to
        be had or not needed."""

    def unpin(self, memory: Any) -> None:
        """Undo a :meth:`pin` that was True."""

    def take(self, array: Any) -> Any:
        """A host array as an operand on the device, once :meth:`synchronize` has returned."""

    def room(self, out: Any) -> Any:
        """An array on the device for a result that goes to the host array ``out``."""

    def give(self, made: Any, out: Any) -> None:
        """Bring a result in what :meth:`room` gave to its place."""

    def free_bytes(self) -> int:
        """Device memory that can still be allocated."""
