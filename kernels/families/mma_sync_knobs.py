"""Knobs of family ``mma_sync``, and the shared memory and registers that follow from them."""

from __future__ import annotations

import dataclasses

from kernels import cuda, tiling
from kernels.family import Knob
from kernels.raster import AXES
from kernels.smem_layout import LAYOUTS, tile_bytes
from tilewright.problem import DType, GemmProblem

FRAGMENT_LOADS = ("direct", "ldmatrix", "mixed", "ldmatrix_reload")
# By value of ACCUMULATE, which leaves the type to the operands.
ACCUMULATES = {"f32": 0, "f16": 1, "f32_outside": 2, "s32": 0, "f64": 0}
EPILOGUES = ("direct", "smem")

SUMS = {DType.FLOAT32: "f32", DType.FLOAT16: "f16", DType.INT32: "s32", DType.FLOAT64: "f64"}
_STEP_BYTES = 32  # of a row of A that one k step multiplies

# Registers of a thread beside accumulators and fragments: addresses, bounds, loop state.
_OTHER_REGISTERS = 40


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    tile_k: int
    warps_k: int
    stages: int
    smem_layout: str
    fragment_load: str
    double_buffer: int
    mma_k: int
    accumulate: str
    epilogue: str
    min_blocks: int
    copy_bytes: int
    snake: int
    split_k: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def warp_m(self) -> int:
        """Rows of D that a warp computes."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return self.tile_n // self.warps_n


KNOBS = (
    Knob(
        "tile_m",
        (16, 32, 64, 96, 128, 192, 256),
        "rows of D a block computes",
        (16, 32, 64, 128, 256),
    ),
    Knob(
        "tile_n",
        (16, 32, 64, 96, 128, 160, 192, 256),
        "columns of D a block computes",
        (32, 64, 96, 128, 192, 256),
    ),
    Knob("warps_m", (1, 2, 4, 8), "warps along m", (1, 2, 4)),
    Knob("warps_n", (1, 2, 4, 8), "warps along n", (1, 2, 4)),
    Knob("tile_k", (8, 16, 32, 64, 128, 256, 512, 1024), "k of one stage, in elements"),
    Knob("warps_k", (1, 2, 4), "groups of warps that slice each k tile", (1, 2)),
    Knob("stages", (1, 2, 3, 4, 5, 6), "k tiles in shared memory; 1 loads synchronously", (2, 3, 4, 5)),
    Knob("smem_layout", LAYOUTS, "arrangement of the tiles in shared memory", ("xor", "permuted")),
    Knob("fragment_load", FRAGMENT_LOADS, "shared memory to registers", ("direct", "ldmatrix", "mixed")),
    Knob("double_buffer", (0, 1), "load the next k step's fragments while this one multiplies"),
    Knob("mma_k", (8, 16), "m16n8k8 or m16n8k16; types that are not 16 bits wide take 16", (16,)),
    Knob(
        "accumulate",
        tuple(ACCUMULATES),
        "type and place of the running sum; f32_outside adds each mma's products in registers",
        ("f32", "f16", "s32", "f64"),
    ),
    Knob("epilogue", EPILOGUES, "registers to D"),
    Knob("min_blocks", (1, 2, 3, 4), "blocks a multiprocessor must hold", (1, 2)),
    Knob("copy_bytes", (2, 4, 8, 16), "widest global load", (16,)),
    Knob("snake", (0, 1), "odd rows of mma tiles run backwards through n"),
    Knob("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 32), "blocks that share a tile", (1, 2, 4, 8)),
    Knob("raster", AXES, "axis along which groups of tiles are laid"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a block-swizzle group", (1, 4, 8)),
)


def step_k(problem: GemmProblem) -> int:
    """Elements of k that one k step multiplies."""
    return 8 * _STEP_BYTES // problem.dtype.bits


def smem_bytes(knobs: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: the stages, reused by the slice-K reduction and the epilogue."""
    stage = sum(tile_bytes(knobs.smem_layout, *tile) for tile in tiling.operand_tiles(knobs, problem))
    reduction = knobs.tile_m * knobs.tile_n * cuda.real_bytes(problem) if knobs.warps_k > 1 else 0
    staged = knobs.tile_m * knobs.tile_n * problem.out.size if knobs.epilogue == "smem" else 0
    return max(knobs.stages * stage, reduction, staged)


def register_estimate(knobs: Knobs) -> int:
    """Registers a thread needs, within a few: accumulators, fragments, everything else."""
    bits = {"f16": 16, "f64": 64}.get(knobs.accumulate, 32)
    accumulators = knobs.warp_m * knobs.warp_n * bits // 1024
    fragments = (1 + knobs.double_buffer) * (knobs.warp_m + knobs.warp_n) // 4
    return accumulators + fragments + _OTHER_REGISTERS
