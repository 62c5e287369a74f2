"""The knobs of family ``mma_sync``."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob
from kernels.common.cuda import RASTER_AXES
from kernels.common.smem import LAYOUTS
from kernels.common.tiling import SPLITS
from tilewright.schema.problem import DType

FRAGMENT_LOADS = ("direct", "ldmatrix", "mixed", "ldmatrix_reload", "ldmatrix_x2")
# The values of ACCUMULATE, which leaves the type to the operands.
ACCUMULATES = {"f32": 0, "f16": 1, "f32_outside": 2, "s32": 0, "f64": 0}
ACCUMULATE_OF = {DType.FLOAT32: "f32", DType.FLOAT16: "f16", DType.INT32: "s32", DType.FLOAT64: "f64"}
EPILOGUES = ("direct", "smem")
LEGAL_SPLITS = (*SPLITS, 32)


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``mma_sync``."""

    tile_m: int = knob(
        64,
        (16, 32, 64, 96, 128, 192, 256),
        "rows of D that a CTA computes",
        searched=(16, 32, 64, 128, 256),
    )
    tile_n: int = knob(
        64,
        (8, 16, 32, 64, 96, 128, 160, 192, 256),
        "columns of D that a CTA computes",
        searched=(32, 64, 96, 128, 192, 256),
    )
    warps_m: int = knob(2, (1, 2, 4, 8), "warps along m", searched=(1, 2, 4))
    warps_n: int = knob(2, (1, 2, 4, 8), "warps along n", searched=(1, 2, 4))
    tile_k: int = knob(64, (8, 16, 32, 64, 128, 256, 512, 1024), "k of one stage, in elements")
    warps_k: int = knob(1, (1, 2, 4), "warps of a CTA along k, which split each k tile", searched=(1, 2))
    stages: int = knob(
        3, (1, 2, 3, 4, 5, 6), "k tiles in shared memory; 1 loads synchronously", searched=(1, 2, 3, 4, 5)
    )
    smem_layout: str = knob(
        "xor", LAYOUTS, "layout of the tiles in shared memory", searched=("xor", "permuted")
    )
    fragment_load: str = knob(
        "ldmatrix", FRAGMENT_LOADS, "shared memory to registers", searched=("direct", "ldmatrix", "mixed")
    )
    copy_step: int = knob(
        0, (0, 1), "k step before which a stage is copied", searched=(0,), absent=0
    )  # fmt: skip
    double_buffer: int = knob(1, (0, 1), "load the next k step's fragments while this one is multiplied")
    mma_k: int = knob(
        16, (8, 16), "m16n8k8 or m16n8k16; types that are not 16 bits wide take 16", searched=(16,)
    )
    accumulate: str = knob(
        "f32",
        tuple(ACCUMULATES),
        "type of the accumulators; f32_outside adds the products of each mma outside the tensor cores",
        searched=("f32", "f16", "s32", "f64"),
        codes=ACCUMULATES,
    )
    epilogue: str = knob("smem", EPILOGUES, "registers to D: directly, or through shared memory")
    min_ctas_per_sm: int = knob(
        1,
        (1, 2, 3, 4),
        "CTAs that an SM must hold: the register budget",
        searched=(1, 2),
        was="min_blocks",
    )
    repack: int = knob(
        0, (0, 1), "copy unaligned rows to aligned ones first",
        macro=None, absent=0,
    )  # fmt: skip
    copy_bytes: int = knob(16, (2, 4, 8, 16), "widest global load", searched=(8, 16), macro=None)
    snake: int = knob(1, (0, 1), "serpentine order: odd rows of mma tiles run backwards through n")
    split_k: int = knob(1, LEGAL_SPLITS, "CTAs that split the k of a tile", searched=SPLITS)
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
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def warp_m(self) -> int:
        """Rows of D that a warp computes."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return self.tile_n // self.warps_n
