"""The knobs of family ``simt``, and the shared memory and registers that follow from them."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob
from kernels.common import cuda
from kernels.common.cuda import RASTER_AXES
from tilewright.schema.problem import GemmProblem

# Registers of a thread beside the accumulators and the operands in flight.
_OTHER_REGISTERS = 44


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``simt``."""

    tile_m: int = knob(64, (1, 16, 32, 64, 128), "rows of D that a CTA computes")
    tile_n: int = knob(64, (1, 16, 32, 64, 128), "columns of D that a CTA computes")
    thread_m: int = knob(4, (1, 2, 4, 8), "rows of D that a thread computes")
    thread_n: int = knob(4, (1, 2, 4, 8), "columns of D that a thread computes")
    tile_k: int = knob(16, (8, 16, 32), "k of one stage")
    stages: int = knob(2, (0, 1, 2), "k tiles in shared memory; 2 loads one ahead, 0 uses none")
    split_k: int = knob(1, (1, 2, 4, 8, 16), "CTAs that split the k of a tile")
    raster: str = knob("m", RASTER_AXES, "axis along which consecutive tiles lie")
    swizzle_size: int = knob(1, (1, 4, 8), "tiles along the raster axis before a step across", was="group")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return -(-self.tile_m // self.thread_m) * -(-self.tile_n // self.thread_n)


def smem_bytes(config: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: both tiles, transposed to k rows, one 16-byte group of padding a row."""
    element = cuda.accumulator_bytes(problem)
    padding = 2 * (16 // element)
    return config.stages * config.tile_k * (config.tile_m + config.tile_n + padding) * element


def register_estimate(config: Knobs, problem: GemmProblem) -> int:
    """Registers that a thread needs, within a few."""
    words = cuda.accumulator_bytes(problem) // 4
    staged = (config.tile_m + config.tile_n) * config.tile_k // config.threads
    # Four steps of k are in flight without stages, and an address of two words for each row and column.
    fetched = staged if config.stages else 6 * (config.thread_m + config.thread_n)
    values = config.thread_m * config.thread_n + 2 * (config.thread_m + config.thread_n) + fetched
    return values * words + _OTHER_REGISTERS
