"""Knobs of family ``wgmma``, and the tiles, bytes and registers that follow from them."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob
from kernels.common.cuda import RASTER_AXES
from kernels.common.wgmma import OperandTile
from tilewright.schema.problem import DType, GemmProblem

EPILOGUES = ("direct", "stmatrix")
ARRIVALS = ("warps", "threads")

# Registers of a thread beside the accumulators: descriptors, addresses, bounds, loop state.
_OTHER_REGISTERS = 40


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``wgmma``."""

    tile_m: int = knob(128, (64, 128, 192, 256), "rows of D that a CTA computes")
    tile_n: int = knob(
        128,
        tuple(range(16, 257, 16)),
        "columns of D that a CTA computes, and the N of wgmma",
        searched=(32, 64, 96, 128, 160, 192, 224, 256),
    )
    warpgroups: int = knob(2, (1, 2, 3, 4), "warpgroups of a CTA, which split the rows")
    tile_k: int = knob(64, (64, 128), "k of one stage")
    stages: int = knob(4, (2, 3, 4, 5, 6, 7, 8), "k tiles in shared memory", searched=(3, 4, 5, 6, 8))
    epilogue: str = knob("stmatrix", EPILOGUES, "registers to D")
    box_lines: int = knob(0, (0, 8), "lines of a TMA box; 0 for all", searched=(0,), absent=0)
    arrivals: str = knob(
        "warps", ARRIVALS, "what releases a stage",
        searched=("warps",), absent="warps",
    )  # fmt: skip
    raster: str = knob("m", RASTER_AXES, "axis along which consecutive tiles lie")
    swizzle_size: int = knob(
        1,
        (1, 2, 4, 8, 16),
        "tiles along the raster axis before a step across",
        searched=(1, 4, 8, 16),
        was="group",
    )

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 128 * self.warpgroups


def operand_tiles(knobs: Knobs, problem: GemmProblem) -> tuple[OperandTile, OperandTile]:
    """The tiles of A and B in one stage."""
    return (
        OperandTile(knobs.tile_m, knobs.tile_k, not problem.layout.a_transposed),
        OperandTile(knobs.tile_n, knobs.tile_k, problem.layout.b_transposed),
    )


def smem_bytes(knobs: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: stages with two barriers each.

    The staged D reuses the stages and always fits them.
    """
    stage = sum(tile.bytes for tile in operand_tiles(knobs, problem))
    return knobs.stages * (stage + 16)


def accumulator_registers(knobs: Knobs, problem: GemmProblem) -> int:
    """Accumulator registers of a thread: one for each element in f32, half as many in f16."""
    elements = knobs.tile_m * knobs.tile_n // knobs.threads
    return elements // 2 if problem.accumulate is DType.FLOAT16 else elements


def register_estimate(knobs: Knobs, problem: GemmProblem) -> int:
    """Registers that a thread needs, within a few."""
    accumulators = accumulator_registers(knobs, problem)
    # NOTE: where the epilogue reads C or a bias, the assembler unpacks all f16 accumulators ahead of their
    # use.
    reads = problem.has_c or problem.has_bias
    unpacked = accumulators if reads and problem.accumulate is DType.FLOAT16 else 0
    return accumulators + unpacked + _OTHER_REGISTERS
