"""Knobs of family ``stream``, and the panels, stages and shared memory that follow from them."""

from __future__ import annotations

import dataclasses

from kernels import cuda
from kernels.families.skinny_knobs import Shape
from kernels.family import Knob
from tilewright.artifact import Grid
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

HINTS = ("normal", "evict_first")
SPLITS = (1, 2, 3, 4, 6, 8, 11, 12)
CLUSTERS = (1, 2, 4, 8)
PREFETCHES = (0, 2, 4)
PANEL_BYTES = 128
MOST_STAGES = 16
_BARRIER = 8
_ALIGNED = 1024  # bytes that the swizzle of a panel repeats after


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`; what has a default decides neither tiles nor units."""

    warp_tiles: int
    warps: int
    panels: int
    split_k: int = 1
    stages: int = 2
    cluster_k: int = 1
    hint: str = "normal"
    l2_promotion: int = 128
    prefetch: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block that multiply."""
        return 32 * self.warps

    @property
    def shares(self) -> int:
        """Blocks that share the k of a tile."""
        return self.split_k * self.cluster_k

    @property
    def tile_wide(self) -> int:
        """Extent of a block's tile along the weights' rows."""
        return 16 * self.warp_tiles

    @property
    def stage_panels(self) -> int:
        """Panels of a stage, each a TMA box."""
        return self.warps * self.panels

    @property
    def stage_bytes(self) -> int:
        """Weights of a stage."""
        return self.stage_panels * self.tile_wide * PANEL_BYTES


KNOBS = (
    Knob("warp_tiles", (1, 2), "16 rows of weights each: the rows of a tile and of a TMA box"),
    Knob("warps", (4, 8, 16), "warps of a block that multiply; they take panels of 128 bytes of k in turn"),
    Knob("panels", (1, 2, 4), "panels of a warp in a stage"),
    Knob("split_k", SPLITS, "units that share a tile"),
    Knob("stages", tuple(range(2, MOST_STAGES + 1)), "stages in shared memory"),
    Knob("cluster_k", CLUSTERS, "blocks of a cluster that share the k of their tiles", before=1),
    Knob("hint", HINTS, "how long the L2 keeps weights"),
    Knob("l2_promotion", (0, 64, 128, 256), "bytes that the L2 fetches for TMA at least", (128,)),
    Knob("prefetch", PREFETCHES, "stages brought to the L2 while the kernel before ends"),
)


def panel_elements(problem: GemmProblem) -> int:
    """k of a panel."""
    return PANEL_BYTES // problem.dtype.size


def thin_panels(k: Knobs, problem: GemmProblem) -> int:
    """Panels of the longest share of a tile: those of the thin operand that shared memory holds."""
    return -(-problem.k // (panel_elements(problem) * k.shares))


def max_k(k: Knobs, problem: GemmProblem) -> int:
    """Largest k whose shares are no longer than those of the problem."""
    return k.shares * thin_panels(k, problem) * panel_elements(problem)


def smem_beside_ring(k: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory but for stages and their barriers: the thin operand's slice with a barrier a
    stage, the sums of every warp with 4 words of padding a row, what a cluster exchanges, and what aligning
    it all may cost."""
    rows, panels, real = Shape.of(problem).rows, thin_panels(k, problem), cuda.real_bytes(problem)
    thin = panels * rows * PANEL_BYTES + -(-panels // k.stage_panels) * _BARRIER
    sums = k.warps * rows * (k.tile_wide + 4) * real
    inbox = 2 * (rows * k.tile_wide * real + _BARRIER) if k.cluster_k > 1 else 0
    return thin + sums + inbox + _ALIGNED


def slot_bytes(k: Knobs) -> int:
    """A stage and its barriers."""
    return k.stage_bytes + 2 * _BARRIER


def smem_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: stages with two barriers each, and the rest."""
    return k.stages * slot_bytes(k) + smem_beside_ring(k, problem)


def flag_bytes(k: Knobs) -> int:
    """Static shared memory: split-K tells a block by a flag that it comes last."""
    return 16 if k.split_k > 1 else 0


def smem_left(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> int:
    """Bytes of shared memory that a block on the device has for stages and barriers."""
    return device.smem_per_block - smem_beside_ring(k, problem) - flag_bytes(k)


def grid(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> Grid:
    """Persistent blocks, one a multiprocessor but for those that clusters cannot fill and whole groups of
    splits leave over: with one thin tile and one batch a block then keeps its split, and with it its slice of
    the thin operand."""
    shape = Shape.of(problem)
    tile = (k.tile_wide, shape.rows) if shape.weights == "a" else (shape.rows, k.tile_wide)
    most = max(1, room(k, device) // k.split_k) * k.split_k
    return Grid(*tile, k.split_k, max_blocks=most, cluster_k=k.cluster_k)


def room(k: Knobs, device: DeviceSpec) -> int:
    """Multiprocessors that blocks can fill."""
    return max(k.cluster_k, cuda.room_in_clusters(k.cluster_k, device))
