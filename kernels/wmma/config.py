"""The knobs of family ``wmma``, and the shared memory and registers that follow from them."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob
from kernels.common import tiling
from kernels.common.cuda import RASTER_AXES
from kernels.common.smem import tile_bytes
from tilewright.schema.problem import GemmProblem

LAYOUTS = ("blocked", "padded")  # the rows of a fragment are evenly spaced, which excludes swizzled layouts
ACCUMULATES = ("f32", "f16")
PADDING = 8  # elements after each row of the staged accumulators

# Registers of a thread beside accumulators and fragments: addresses, bounds, loop state. With 36, warps of
# 32 x 64 fit 512 threads and warps of 16 x 32 fit 1024: the most that NVRTC 13.0 compiles without spills.
_OTHER_REGISTERS = 36


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``wmma``."""

    tile_m: int = knob(
        64,
        (16, 32, 64, 96, 128, 192, 256),
        "rows of D that a CTA computes",
        searched=(16, 32, 64, 128, 256),
    )
    tile_n: int = knob(
        64,
        (16, 32, 64, 96, 128, 192, 256),
        "columns of D that a CTA computes",
        searched=(32, 64, 128, 256),
    )
    warps_m: int = knob(2, (1, 2, 4, 8), "warps along m", searched=(1, 2, 4))
    warps_n: int = knob(2, (1, 2, 4, 8), "warps along n", searched=(1, 2, 4))
    tile_k: int = knob(32, (16, 32, 64, 128), "k of one stage", searched=(32, 64))
    stages: int = knob(
        3, (1, 2, 3, 4, 5, 6), "k tiles in shared memory; 1 loads synchronously", searched=(2, 3, 4)
    )
    smem_layout: str = knob(
        "padded", LAYOUTS, "layout of the tiles and of the staged accumulators in shared memory"
    )
    accumulate: str = knob("f32", ACCUMULATES, "type of the accumulators")
    copy_bytes: int = knob(16, (2, 4, 8, 16), "widest global load", searched=(16,), macro=None)
    snake: int = knob(1, (0, 1), "serpentine order: odd rows of wmma tiles run backwards through n")
    split_k: int = knob(1, (*tiling.SPLITS, 32), "CTAs that split the k of a tile", searched=tiling.SPLITS)
    raster: str = knob("m", RASTER_AXES, "axis along which consecutive tiles lie")
    swizzle_size: int = knob(
        1,
        (1, 2, 4, 8, 16),
        "tiles along the raster axis before a step across",
        searched=(1, 4, 8),
        was="group",
    )

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_m * self.warps_n

    @property
    def warp_m(self) -> int:
        """Rows of D that a warp computes."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return self.tile_n // self.warps_n


def smem_bytes(config: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: the stages, which the accumulators reuse on their way to D."""
    stage = sum(tile_bytes(config.smem_layout, *tile) for tile in tiling.operand_tiles(config, problem))
    row = config.tile_n + (PADDING if config.smem_layout == "padded" else 0)
    accumulators = config.tile_m * row * (2 if config.accumulate == "f16" else 4)
    return max(config.stages * stage, accumulators)


def register_estimate(config: Knobs) -> int:
    """The fewest registers of a thread: accumulators, fragments of one k step, everything else.

    The compiler takes up to 80 more if they are free.
    """
    accumulators = config.warp_m * config.warp_n // (64 if config.accumulate == "f16" else 32)
    return accumulators + (config.warp_m + config.warp_n) // 4 + _OTHER_REGISTERS
