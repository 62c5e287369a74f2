"""Knobs of family ``host`` and the rules between them.

Rules that read no problem but its type and no device but its vector unit are those of
``csrc/host_config.h``; the others keep the tuner from configs that waste threads or memory.
"""

from __future__ import annotations

import dataclasses

from kernels.family import Rule
from tilewright.artifact import Grid
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

PACKED_A_LIMIT = 2 << 20
PACKED_B_LIMIT = 8 << 20
SMALL_TILE = 256
ENOUGH_FLOPS = 1 << 28


@dataclasses.dataclass(frozen=True, slots=True)
class VectorUnit:
    """Vector registers of an architecture: bytes of one, and how many there are."""

    bytes: int
    registers: int


VECTOR_UNITS = {
    "x86_64": VectorUnit(16, 16),
    "x86_64_v2": VectorUnit(16, 16),
    "x86_64_v3": VectorUnit(32, 16),
    "x86_64_v4": VectorUnit(64, 32),
    "aarch64": VectorUnit(16, 32),
}


@dataclasses.dataclass(slots=True)
class HostKnobs:
    """The knobs of one config; see the family for their meaning."""

    threads: int
    mr: int
    nv: int
    kc: int
    mc: int
    nc: int
    swizzle: int
    snake: int
    stream: str
    unroll: int
    prefetch: int

    def tile_rows(self) -> int:
        """Rows of a cache tile: ``mc`` rounded up to whole register tiles."""
        return -(-self.mc // self.mr) * self.mr

    def tile_columns(self, dtype: DType, device: DeviceSpec) -> int:
        """Columns of a cache tile: ``nc`` rounded up to whole register tiles."""
        width = self.nv * VECTOR_UNITS[device.arch].bytes // dtype.size
        return -(-self.nc // width) * width

    def grid(self, problem: GemmProblem, device: DeviceSpec) -> Grid:
        """Cache tiles over D."""
        return Grid(self.tile_rows(), self.tile_columns(problem.dtype, device))


def _registers(knobs: HostKnobs, _: GemmProblem, device: DeviceSpec) -> str | None:
    have = VECTOR_UNITS[device.arch].registers
    needed = knobs.mr * knobs.nv + knobs.nv + 1
    if needed > have:
        return f"the register tile, a row of B and one element of A need {needed} of {have} vector registers"
    if 2 * knobs.mr * knobs.nv < have:
        return (
            f"a register tile below half of the {have} vector registers cannot hide the latency of its FMAs"
        )
    return None


def _packed_a(knobs: HostKnobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    size = knobs.mc * knobs.kc * problem.dtype.size
    return f"the packed A tile of {size} bytes exceeds {PACKED_A_LIMIT}" if size > PACKED_A_LIMIT else None


def _packed_b(knobs: HostKnobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    size = knobs.nc * knobs.kc * problem.dtype.size
    return f"the packed B tile of {size} bytes exceeds {PACKED_B_LIMIT}" if size > PACKED_B_LIMIT else None


def _threads(knobs: HostKnobs, _: GemmProblem, device: DeviceSpec) -> str | None:
    if knobs.threads in thread_counts(device):
        return None
    return f"threads must be the device's {device.units}, halved any number of times; got {knobs.threads}"


def _balance(knobs: HostKnobs, problem: GemmProblem, device: DeviceSpec) -> str | None:
    tiles = knobs.grid(problem, device).tiles(problem) * problem.batch
    slots = -(-tiles // knobs.threads) * knobs.threads
    if 2 * slots <= 3 * tiles:
        return None
    return f"{tiles} cache tiles leave more than a third of the time of {knobs.threads} threads idle"


def _workers(knobs: HostKnobs, problem: GemmProblem, device: DeviceSpec) -> str | None:
    if 2 * knobs.threads >= device.units or problem.flops <= knobs.threads * ENOUGH_FLOPS:
        return None
    return f"{knobs.threads} of {device.units} threads would carry more than {ENOUGH_FLOPS} operations each"


def _extents(knobs: HostKnobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    tile, extents = (knobs.mc, knobs.nc, knobs.kc), (problem.m, problem.n, problem.k)
    for name, value, extent in zip(("mc", "nc", "kc"), tile, extents, strict=True):
        if value > max(SMALL_TILE, 2 * extent):
            return f"{name}={value} is more than twice the problem's {extent}: a smaller one does the same"
    return None


def _swizzle(knobs: HostKnobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    rows = -(-problem.m // knobs.tile_rows())
    if knobs.swizzle == 1 or rows >= knobs.swizzle:
        return None
    return f"a swizzle of {knobs.swizzle} rows of tiles needs as many; D has {rows}"


def _snake(knobs: HostKnobs, problem: GemmProblem, device: DeviceSpec) -> str | None:
    tiles = knobs.grid(problem, device).tiles(problem) * problem.batch
    if knobs.snake == 0 or tiles > knobs.threads:
        return None
    return "a thread with a single tile has no turn to snake around"


def thread_counts(device: DeviceSpec) -> list[int]:
    """All units, half of them, and so on down to 1, largest first."""
    return [device.units >> shift for shift in range(device.units.bit_length())]


RULES = (
    Rule(("mr", "nv"), _registers),
    Rule(("mc", "kc"), _packed_a),
    Rule(("nc", "kc"), _packed_b),
    Rule(("threads",), _threads),
    Rule(("threads",), _workers),
    Rule(("mc", "nc", "kc"), _extents),
    Rule(("threads", "mr", "nv", "mc", "nc"), _balance),
    Rule(("mr", "mc", "swizzle"), _swizzle),
    Rule(("threads", "mr", "nv", "mc", "nc", "snake"), _snake),
)
