"""Knobs of family ``wgmma_ws``."""

from __future__ import annotations

import dataclasses

from kernels.family import Knob
from kernels.raster import RASTERS

SCHEDULES = ("cooperative", "pingpong")
EPILOGUES = ("direct", "stmatrix", "tma", "deferred")
TMA_STORES = ("tma", "deferred")
REDUCTIONS = ("block", "kernel", "shares")
HINTS = ("normal", "evict_first", "evict_last")
PLACEMENTS = ("free", "gpc")
FETCH = 128  # bytes that the L2 had best fetch at least, if anything


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    schedule: str
    swap_ab: int
    tile_m: int
    tile_n: int
    consumers_m: int
    consumers_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    cluster_k: int
    split_k: int
    reduction: str
    stream_k: int
    epilogue: str
    store_stages: int
    stages: int
    in_flight: int
    promote: int
    raster: str
    group: int
    snake: int
    l2_promotion: int
    hint_a: str
    hint_b: str
    hint_d: str
    prefetch: int
    placement: str
    snake_k: int
    even_waves: int
    whole_sectors: int
    beat: int

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.schedule == "pingpong" else self.consumers_m * self.consumers_n

    @property
    def threads(self) -> int:
        """Threads of a block: the consumers and the producer's warpgroup."""
        return 128 * (self.consumers + 1)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def share(self) -> tuple[int, int]:
        """What one consumer computes along wgmma's M and along its N."""
        rows, columns = self.tile_m // self.consumers_m, self.tile_n // self.consumers_n
        return (columns, rows) if self.swap_ab else (rows, columns)


KNOBS = (
    Knob("schedule", SCHEDULES, "whether the consumers share a tile or take turns"),
    Knob("swap_ab", (0, 1), "compute the transpose of D, so that tile_n is wgmma's M"),
    Knob("tile_m", (8, 16, 24, 32, 48, 64, 96, 128, 192, 256), "rows of D of a tile"),
    Knob(
        "tile_n",
        tuple(range(8, 257, 8)),
        "columns of D of a tile",
        (
            *(16, 32, 48, 64, 72, 80, 88, 96, 104, 112, 120, 128),
            *(144, 160, 168, 176, 192, 200, 208, 224, 240, 256),
        ),
    ),
    Knob("consumers_m", (1, 2, 3), "warpgroups that split the rows of a tile"),
    Knob("consumers_n", (1, 2, 3), "warpgroups that split its columns", (1, 2)),
    Knob("tile_k", (64, 128, 256), "k of one stage"),
    Knob("cluster_m", (1, 2, 4), "tiles of a cluster along m, which share B"),
    Knob("cluster_n", (1, 2, 4), "tiles of a cluster along n, which share A"),
    Knob("cluster_k", (1, 2), "blocks of a cluster that share the k of their tile"),
    Knob("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), "units that share a tile"),
    Knob(
        "reduction",
        REDUCTIONS,
        "who adds up the parts of split-K: the last block, a kernel after, or every block a share",
    ),
    Knob("stream_k", (0, 1), "cut the last waves of tiles in equal shares of k"),
    Knob(
        "epilogue",
        EPILOGUES,
        "registers to D: straight, or staged and copied, stored by TMA at once or late",
    ),
    Knob("store_stages", (1, 2, 4), "staged boxes of a consumer"),
    Knob("whole_sectors", (0, 1), "staged boxes of 16, 32 or 64 columns, not of odd eights", before=0),
    Knob("in_flight", (0, 1), "groups of wgmma left running while the next k tile is awaited", (1,)),
    Knob("promote", (0, 1, 2, 4), "8-bit floats: k tiles after which sums leave the tensor cores; 0 never"),
    Knob("stages", tuple(range(2, 17)), "k tiles in shared memory"),
    Knob("raster", RASTERS, "axis along which bands of tiles are laid, or a Hilbert curve in squares"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a band"),
    Knob("snake", (0, 1), "walk every other band backwards"),
    Knob("l2_promotion", (0, 128, 256), "bytes that the L2 fetches for TMA at least", (128, 256)),
    Knob("hint_a", HINTS, "how long the L2 keeps A"),
    Knob("hint_b", HINTS, "how long the L2 keeps B"),
    Knob(
        "hint_d",
        HINTS,
        "how long the L2 keeps D, where TMA stores it",
        ("normal", "evict_first"),
        before="normal",
    ),
    Knob(
        "prefetch",
        (0, 2, 4, 8, 16, 32),
        "k tiles brought to the L2 while the kernel before ends",
        (0, 4, 8),
        before=0,
    ),
    Knob(
        "placement",
        PLACEMENTS,
        "which blocks take neighbouring tiles: any, or those of a GPC, in kernels that do not overlap",
        before="free",
    ),
    Knob("snake_k", (0, 1), "walk k backwards in every other unit of a block", before=0),
    Knob(
        "even_waves",
        (0, 1),
        "a multiple of `group` clusters work, the others idle, if that takes no more waves",
        before=0,
    ),
    Knob(
        "beat",
        (0, 256, 512, 1024),
        "clocks at whose multiples loads are issued, so that neighbours ask together; 0 at once",
        (0, 512, 1024),
        before=0,
    ),
)
