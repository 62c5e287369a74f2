"""``Device``: the interface of a device to checks, measurements and races."""

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
    """The state of a device at this moment; None for a value that it does not report.

    Attributes:
        mhz: core clock.
        watts: power, which NVML averages over a second.
        capped: whether the device says that its power limit holds the clock down.
    """

    mhz: float | None = None
    watts: float | None = None
    capped: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Conditions:
    """The limits and the temperature of a device; None for a value that it does not report.

    Attributes:
        most_mhz: highest clock.
        power_limit_watts: power limit in force.
        celsius: temperature.
    """

    most_mhz: float | None = None
    power_limit_watts: float | None = None
    celsius: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU as NVML sees it from outside.

    Attributes:
        held_bytes: bytes of memory in use that no listed process has.
        processes: ids of the processes that use it, as far as NVML lists them.
        most_mhz: the highest clock of its SMs; None if NVML does not report it.
        slowdowns: what holds its clocks down, by NVML's names: thermal, a power brake, the hardware.
        set_mhz: the clock that is set for applications; None if NVML does not report it.
        ended: the ids in ``processes`` that no longer run here, or were killed and are about to go.
        complete: whether ``processes`` lists every process with memory, so that ``held_bytes`` belongs to no
            process.
    """

    held_bytes: int
    processes: tuple[int, ...]
    most_mhz: int | None
    slowdowns: tuple[str, ...]
    set_mhz: int | None = None
    ended: tuple[int, ...] = ()
    complete: bool = False


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
        detail: attributes of the algorithm as the library reports them.
        hint: the algorithm's tile hint, or None if the library reports too little.
    """

    name: str
    launches: Sequence[Launch]
    detail: dict[str, Any]
    hint: TileHint | None = None


class Device(Protocol):
    """One device, owned by the process that uses it.

    Attributes:
        spec: description of the device.
        driver: name and version of driver or operating system.
        identity: tells the device from every other one of this machine: a GPU's UUID.
        settle_s: seconds of load after which its clock is one that it can hold.
        xp: the array module, NumPy or CuPy.
    """

    spec: DeviceSpec
    driver: str
    identity: str
    settle_s: float
    xp: Any

    def __hash__(self) -> int:
        """Hash by object identity: operands are cached per device."""

    def address(self, array: Any) -> int:
        """The address of an array's first byte."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run.

        Raises:
            LaunchError: something enqueued failed; ``sticky`` if the context is lost.
        """

    def timer(self, launches: Sequence[Launch]) -> Callable[[], float]:
        """A function that runs all launches once, in order, and returns microseconds per launch.

        On CUDA the launches are captured in one graph and timed with events around its replay; on
        the host they run in a loop around a monotonic clock.
        """

    def once(self, launch: Launch) -> float:
        """Microseconds of one launch, which is run once and waited for; for GEMMs on request."""

    def pause(self, stream: int = 0) -> None:
        """Enqueue an empty step that starts after the previous launch has ended and ends before the next
        starts.

        The first call must not be part of a graph capture.
        """

    def crowd(self) -> None:
        """Enqueue work that leaves room for a few CTAs at a time for about 0.1 ms, beside what follows.

        So the CTAs of a kernel run one after the other, in another order than usual.
        """

    def telemetry(self) -> Telemetry:
        """Clock and power at this moment."""

    def conditions(self) -> Conditions:
        """Highest clock, power limit and temperature at this moment."""

    def others(self) -> dict[str, float]:
        """Seconds that others, or a temperature, took from this process so far, by the kinds that
        :data:`tuner.measure.interference.LIMITS` names; a kind that the system does not tell is left out."""

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """The algorithms that the vendor library proposes, ready to run; empty if there is none."""

    def every_vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        """The algorithms of :meth:`vendor` that run, then those that the library accepts but does not
        propose; takes seconds."""

    def vendor_default(self, problem: GemmProblem, tensors: Tensors) -> VendorChoice | None:
        """The algorithm that the vendor library would choose; None if it does not compute the problem."""

    def pin(self, memory: Any) -> bool:
        """Pin a NumPy array, so that copies run at full speed; False if impossible or not needed."""

    def unpin(self, memory: Any) -> None:
        """Undo a :meth:`pin` that returned True."""

    def upload(self, array: Any) -> Any:
        """A host array as an operand on the device, complete once :meth:`synchronize` has returned."""

    def result_buffer(self, out: Any) -> Any:
        """An array on the device for a result that will be copied to the host array ``out``."""

    def download(self, made: Any, out: Any) -> None:
        """Copy the result in ``made``, which :meth:`result_buffer` returned, to the host array ``out``."""

    def free_bytes(self) -> int:
        """Device memory that can still be allocated."""
