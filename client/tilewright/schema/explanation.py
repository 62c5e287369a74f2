"""Why a kernel takes the time that it takes: what limits it, how it fills the device, what else there was."""

from __future__ import annotations

import dataclasses

from tilewright.schema.codec import KnobValue


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A lower bound of the time of a kernel.

    Attributes:
        name: ``compute``, ``memory``, ``l2`` or ``launch``.
        us: microseconds of one GEMM; None if no rate of the device is known.
        basis: the rate, and where it comes from.
    """

    name: str
    us: float | None
    basis: str


@dataclasses.dataclass(frozen=True, slots=True)
class Occupancy:
    """How many CTAs of a kernel an SM holds at once.

    Attributes:
        ctas: that number.
        binding: what allows no more: ``shared memory``, ``registers``, ``threads`` or ``CTA slots``.
        by_resource: the number that each of them allows.
        warps: warps of these CTAs.
        threads: threads of a CTA.
        registers: registers of a thread.
        smem_bytes, smem_limit: shared memory of a CTA, and the most that a CTA may have.
    """

    ctas: int
    binding: str
    by_resource: dict[str, int]
    warps: int
    threads: int
    registers: int
    smem_bytes: int
    smem_limit: int


@dataclasses.dataclass(frozen=True, slots=True)
class Waves:
    """How the work tiles of a kernel fill the device.

    Attributes:
        work_tiles: tiles of D times splits and batch, in whole clusters.
        at_once: work tiles that the device computes at once.
        waves: rounds of that many.
        last_filled: part of the device that the last round keeps busy, 0 .. 1.
        useful: part of the device's time that computes D, 0 .. 1; tile edges and the last round are lost.
    """

    work_tiles: int
    at_once: int
    waves: int
    last_filled: float
    useful: float


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that move: ``needed`` if each operand is read and D written once, ``loaded`` from the L2 by all
    tiles; None if the kernel shares loads in another way."""

    needed: int
    loaded: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """The config with the next value of one knob.

    Attributes:
        knob, value: the change.
        excluded: the rule that this value breaks, or why it is not worth a trial; empty where it is.
        valid: whether the kernel accepts it.
        measured_us: its median in the job that found the winner; None if that did not try it.
        ratio: its time over the winner's in that search, or by the cost model; None if unknown.
        estimated: whether ``ratio`` is of the cost model.
    """

    knob: str
    value: KnobValue
    excluded: str
    valid: bool
    measured_us: float | None = None
    ratio: float | None = None
    estimated: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """What explains the time of a config on a problem and device.

    Attributes:
        limits: by name, the highest first; those without a time last.
        nearest_limit: the highest limit; None if none is known.
        reached: that limit over the measured time, 0 .. 1; None if either is unknown.
        occupancy, waves: on GPUs; None on the host.
        traffic: bytes that move.
        alternatives: the next values of each knob.
        outdated: the rule by which this release would not build the config, which says little then; empty if
            it would.
    """

    limits: tuple[Limit, ...]
    nearest_limit: str | None
    reached: float | None
    occupancy: Occupancy | None
    waves: Waves | None
    traffic: Traffic
    alternatives: tuple[Alternative, ...]
    outdated: str = ""
