"""Knobs of family ``wgmma_ws``."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob
from kernels.common.cuda import RASTER_AXES

SCHEDULES = ("cooperative", "pingpong")
EPILOGUES = ("direct", "stmatrix", "tma", "overlapped")
TMA_STORES = ("tma", "overlapped")
REDUCTIONS = ("none", "kernel", "reduce_scatter")
# Eviction priorities of A, B and D in the L2, by value of the knob l2_hints.
L2_HINTS: dict[str, tuple[str, ...]] = {
    "normal": ("normal", "normal", "normal"),
    "stream_a": ("evict_first", "normal", "normal"),
    "stream_b": ("normal", "evict_first", "normal"),
    "stream_ab": ("evict_first", "evict_first", "normal"),
    "stream_d": ("normal", "normal", "evict_first"),
    "keep_a": ("evict_last", "normal", "evict_first"),
    "keep_b": ("normal", "evict_last", "evict_first"),
}
_KEPT_BEFORE_D_HAD_A_HINT = {
    ("evict_last", "normal", "normal"): "keep_a",
    ("normal", "evict_last", "normal"): "keep_b",
}
CTA_ORDERS = ("free", "gpc")
MOST_STAGES = 16
SEARCHED_TILE_M = (*range(8, 129, 8), 192, 256)
SEARCHED_TILE_N = (
    *range(8, 129, 8),
    *(144, 160, 168, 176, 192, 200, 208, 224, 240, 256),
)


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``wgmma_ws``."""

    schedule: str = knob(
        "cooperative", SCHEDULES, "whether the consumers compute one tile together or alternate tiles"
    )
    swap_ab: int = knob(0, (0, 1), "compute the transpose of D, so that tile_n is the M of wgmma")
    tile_m: int = knob(128, range(8, 257, 8), "rows of a tile of D", searched=SEARCHED_TILE_M)
    tile_n: int = knob(256, range(8, 257, 8), "columns of a tile of D", searched=SEARCHED_TILE_N)
    consumers_m: int = knob(2, (1, 2, 3), "consumer warpgroups along the rows of a tile")
    consumers_n: int = knob(1, (1, 2, 3), "consumer warpgroups along its columns", searched=(1, 2))
    tile_k: int = knob(64, (64, 128, 256), "k of one stage")
    cluster_m: int = knob(1, (1, 2, 4), "tiles of a cluster along m; they share B by multicast")
    cluster_n: int = knob(1, (1, 2, 4), "tiles of a cluster along n; they share A by multicast")
    cluster_k: int = knob(1, (1, 2), "CTAs of a cluster that split the k of their tile")
    split_k: int = knob(1, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), "work tiles that split the k of a tile")
    reduction: str = knob(
        "none",
        REDUCTIONS,
        "what adds up the partials of split-K: a kernel after, or each CTA a slice",
        values_were={"last_cta": "none", "block": "none", "shares": "reduce_scatter"},
    )
    epilogue: str = knob(
        "tma",
        EPILOGUES,
        "stores D directly, staged and copied, by TMA, or by TMA overlapped with the next tile",
        values_were={"deferred": "overlapped"},  # codespell:ignore deferred
    )
    store_stages: int = knob(2, (1, 2, 4), "staged epilogue subtiles of a consumer")
    sector_aligned_store: int = knob(
        0,
        (0, 1),
        "only epilogue subtiles of 16, 32 or 64 columns, which are whole L2 sectors",
        absent=0,
        was="whole_sectors",
    )
    promote: int = knob(
        0, (0, 1, 2, 4), "8-bit floats: k tiles between promotions of the accumulators; 0 never"
    )
    stages: int = knob(4, range(2, MOST_STAGES + 1), "k tiles in shared memory")
    raster: str = knob("m", RASTER_AXES, "axis along which consecutive clusters lie")
    swizzle_size: int = knob(
        8, (1, 2, 4, 8, 16), "clusters along the raster axis before a step across", was="group"
    )
    snake: int = knob(
        0, (0, 1), "serpentine raster: every other run across goes backwards", macro="RASTER_SNAKE"
    )
    l2_hints: str = knob(
        "normal",
        L2_HINTS,
        "matrices that the L2 evicts first, or the operand that it keeps while D streams",
        macro=None,
        replaces={"hint_a": "normal", "hint_b": "normal", "hint_d": "normal"},
        combined={hints: name for name, hints in L2_HINTS.items()} | _KEPT_BEFORE_D_HAD_A_HINT,
    )
    prefetch: int = knob(
        0,
        (0, 2, 4, 8, 16, 32),
        "k tiles prefetched to the L2 before the previous kernel ends",
        searched=(0, 4, 8),
        absent=0,
    )
    cta_order: str = knob(
        "free",
        CTA_ORDERS,
        "which clusters compute neighbouring tiles: any, or those of one GPC",
        absent="free",
        was="placement",
    )
    reverse_k: int = knob(
        0, (0, 1), "every other work tile of a CTA runs k backwards", absent=0, was="snake_k"
    )

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.schedule == "pingpong" else self.consumers_m * self.consumers_n

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumers and the producer's warpgroup."""
        return 128 * (self.consumers + 1)

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """What the loads of a CTA depend on, besides its cluster: schedule, swap_ab, tile_m and tile_n."""
        return self.schedule, self.swap_ab, self.tile_m, self.tile_n

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def warpgroup_tile(self) -> tuple[int, int]:
        """Extents of the tile of one consumer along the M and along the N of wgmma."""
        rows, columns = self.tile_m // self.consumers_m, self.tile_n // self.consumers_n
        return (columns, rows) if self.swap_ab else (rows, columns)
