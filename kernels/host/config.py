"""The knobs of family ``host``, and the cache tiles and threads that follow from them."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob
from tilewright.artifact import Grid
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

MOST_THREADS = 512
_MULTIPLES_OF_16 = tuple(range(16, 4097, 16))


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
class Knobs:
    """A config of family ``host``."""

    threads: int = knob(1, tuple(range(1, MOST_THREADS + 1)), "threads that divide D", macro=None)
    mr: int = knob(4, tuple(range(1, 17)), "rows of the register tile", searched=(4, 6, 8, 12, 14))
    nv: int = knob(2, (1, 2, 3, 4), "vectors in a row of the register tile")
    kc: int = knob(256, _MULTIPLES_OF_16[:64], "depth of a cache tile", searched=(192, 256, 384))
    mc: int = knob(128, _MULTIPLES_OF_16[:64], "rows of a cache tile", searched=(64, 128, 256, 512))
    nc: int = knob(128, _MULTIPLES_OF_16, "columns of a cache tile", searched=(128, 512, 1024))
    swizzle: int = knob(
        1, (1, 2, 4, 8), "rows of cache tiles before the raster steps to the next column", searched=(1, 4)
    )
    snake: int = knob(0, (0, 1), "serpentine order of cache tiles and of k")
    stream: str = knob("b", ("a", "b"), "operand whose panels stream past a resident panel of the other")
    unroll: int = knob(4, (1, 2, 4, 8), "k steps per iteration of the inner loop", searched=(4,))
    prefetch: int = knob(0, (0, 4, 8, 16), "k steps fetched ahead, 0 for none", searched=(0, 8))

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


def thread_counts(device: DeviceSpec) -> list[int]:
    """The device's threads, half of them, and so on down to 1, largest first."""
    return [device.sm_count >> shift for shift in range(device.sm_count.bit_length())]
