"""Knobs of family ``wgmma``, and the tiles, bytes and registers that follow from them."""

from __future__ import annotations

import dataclasses

from kernels.family import Knob
from kernels.raster import AXES
from kernels.wgmma_layout import OperandTile
from tilewright.problem import DType, GemmProblem

EPILOGUES = ("direct", "stmatrix")

# Registers of a thread beside the accumulators: descriptors, addresses, bounds, loop state.
_OTHER_REGISTERS = 40


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    tile_m: int
    tile_n: int
    warpgroups: int
    tile_k: int
    stages: int
    epilogue: str
    in_flight: int
    l2_promotion: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.warpgroups


KNOBS = (
    Knob("tile_m", (64, 128, 192, 256), "rows of D a block computes"),
    Knob(
        "tile_n",
        tuple(range(16, 257, 16)),
        "columns of D a block computes, and the N of wgmma",
        (32, 64, 96, 128, 160, 192, 224, 256),
    ),
    Knob("warpgroups", (1, 2, 3, 4), "groups of 128 threads that split the rows"),
    Knob("tile_k", (64, 128), "k of one stage"),
    Knob("stages", (2, 3, 4, 5, 6, 7, 8), "k tiles in shared memory", (3, 4, 5, 6, 8)),
    Knob("epilogue", EPILOGUES, "registers to D"),
    Knob("in_flight", (0, 1), "groups of wgmma left running while the next k tile is awaited"),
    Knob("l2_promotion", (0, 128, 256), "bytes that the L2 fetches for TMA at least", (128, 256)),
    Knob("raster", AXES, "axis along which groups of tiles are laid"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a block-swizzle group", (1, 4, 8, 16)),
)


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
    """Registers of a thread that hold sums: one an element in f32, half of that in f16."""
    elements = knobs.tile_m * knobs.tile_n // knobs.threads
    return elements // 2 if problem.accumulate is DType.FLOAT16 else elements


def register_estimate(knobs: Knobs, problem: GemmProblem) -> int:
    """Registers a thread needs, within a few."""
    sums = accumulator_registers(knobs, problem)
    # NOTE: where the epilogue reads C or a bias, the assembler unpacks all f16 sums ahead of their use.
    reads = problem.has_c or problem.has_bias
    unpacked = sums if reads and problem.accumulate is DType.FLOAT16 else 0
    return sums + unpacked + _OTHER_REGISTERS
