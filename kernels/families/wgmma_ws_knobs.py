"""Knobs of family ``wgmma_ws``, and the tiles, bytes, registers and grid that follow from them."""

from __future__ import annotations

import dataclasses
import math

from kernels.family import Knob
from kernels.raster import RASTERS
from kernels.wgmma_layout import OperandTile
from tilewright.artifact import Grid, Workspace
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

SCHEDULES = ("cooperative", "pingpong")
EPILOGUES = ("direct", "stmatrix", "tma", "deferred")
TMA_STORES = ("tma", "deferred")
REDUCTIONS = ("block", "kernel")
HINTS = ("normal", "evict_first", "evict_last")
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
    epilogue: str
    store_stages: int
    stages: int
    in_flight: int
    promote: int
    split_k: int
    reduction: str
    stream_k: int
    raster: str
    group: int
    snake: int
    l2_promotion: int
    hint_a: str
    hint_b: str
    hint_d: str
    prefetch: int

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
    Knob(
        "epilogue",
        EPILOGUES,
        "registers to D: straight, or staged and copied, stored by TMA at once or late",
    ),
    Knob("store_stages", (1, 2, 4), "staged boxes of a consumer", (1, 2)),
    Knob("in_flight", (0, 1), "groups of wgmma left running while the next k tile is awaited", (1,)),
    Knob("promote", (0, 1, 2, 4), "8-bit floats: k tiles after which sums leave the tensor cores; 0 never"),
    Knob("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), "units that share a tile"),
    Knob("reduction", REDUCTIONS, "who adds up the parts of split-K: the last block, or a kernel after"),
    Knob("stream_k", (0, 1), "cut the last waves of tiles in equal shares of k"),
    Knob("stages", tuple(range(2, 17)), "k tiles in shared memory"),
    Knob("raster", RASTERS, "axis along which bands of tiles are laid, or a Hilbert curve in squares"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a band"),
    Knob("snake", (0, 1), "walk every other band backwards"),
    Knob("l2_promotion", (0, 128, 256), "bytes that the L2 fetches for TMA at least", (128, 256)),
    Knob("hint_a", HINTS, "how long the L2 keeps A", ("normal",)),
    Knob("hint_b", HINTS, "how long the L2 keeps B", ("normal", "evict_first")),
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
)


def operand_tiles(k: Knobs, problem: GemmProblem) -> tuple[OperandTile, OperandTile]:
    """The tiles of A and B in one stage."""
    size = problem.dtype.size
    return (
        OperandTile(k.tile_m, k.tile_k, not problem.layout.a_transposed, size, k.cluster_n),
        OperandTile(k.tile_n, k.tile_k, problem.layout.b_transposed, size, k.cluster_m),
    )


def row_alignment(problem: GemmProblem) -> int:
    """Bytes that divide where rows of A and B start, 256 at most.

    Rows that TMA cannot take count as they are repacked: in whole 128 bytes.
    """
    extents = (
        problem.m if problem.layout.a_transposed else problem.k,
        problem.k if problem.layout.b_transposed else problem.n,
    )
    rows = [extent * problem.dtype.size for extent in extents]
    return math.gcd(256, *(-(-row // 128) * 128 if row % 16 else row for row in rows))


def store_box(k: Knobs) -> tuple[int, int]:
    """(rows, columns) of D in one staged box: 64 along wgmma's M, as much along its N as divides it.

    Rows of 64 elements with swap_ab, up to 64 of them. Else rows as wide as a swizzle of TMA, or, where TMA
    stores them, an odd number of 16-byte chunks, which are on different banks without a swizzle.
    """
    whole = k.share[1] // k.cluster_k
    odd = range(8, 105, 16) if k.epilogue in TMA_STORES else (8,)
    widths = range(8, 65, 8) if k.swap_ab else (16, 32, 64, *odd)
    width = max((width for width in widths if whole % width == 0), default=8)
    return (width, 64) if k.swap_ab else (64, width)


def store_boxes(k: Knobs) -> int:
    """Staged boxes that hold a consumer's share of a tile."""
    extent, width = k.share
    rows, columns = store_box(k)
    return extent * width // k.cluster_k // (rows * columns)


def store_swizzle(k: Knobs) -> int:
    """Bytes of TMA's swizzle of a staged box, 0 for none."""
    row_bytes = store_box(k)[1] * 2
    return row_bytes if row_bytes in (32, 64, 128) else 0


def store_bytes(k: Knobs) -> int:
    """Shared memory of the staged boxes."""
    rows, columns = store_box(k)
    return 0 if k.epilogue == "direct" else k.consumers * k.store_stages * rows * columns * 2


def exchange_bytes(k: Knobs) -> int:
    """Shared memory for what the consumers receive from the block with the other half of k, and barriers."""
    extent, width = k.share
    return 0 if k.cluster_k == 1 else k.consumers * extent * width // 2 * 4


def stage_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Shared memory of one stage with its two barriers."""
    return (k.tile_m + k.tile_n) * k.tile_k * problem.dtype.size + 16


def fixed_bytes(k: Knobs) -> int:
    """Dynamic shared memory beside the stages: staged boxes, exchanged sums, barriers and a flag a consumer,
    and what aligning to 1 KiB may cost."""
    return store_bytes(k) + exchange_bytes(k) + (16 + 4) * k.consumers + 1024


def smem_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory."""
    return k.stages * stage_bytes(k, problem) + fixed_bytes(k)


def sum_registers(k: Knobs, problem: GemmProblem) -> int:
    """Accumulator registers of a consumer's thread."""
    extent, width = k.share
    registers = extent * width // 128 * (2 if k.promote else 1)
    return registers // 2 if problem.accumulate is DType.FLOAT16 else registers


def kept_registers(k: Knobs) -> int:
    """Registers of a consumer's thread for finished elements that are yet to be stored."""
    extent, width = k.share
    return extent * width // 256 if k.epilogue == "deferred" else 0


def registers(k: Knobs) -> int | None:
    """Registers of a thread as the compiled kernel states them, or None where they follow from its code.

    With several consumers the roles move registers among each other, and the kernel states the even share.
    """
    return None if k.consumers == 1 else 65536 // k.threads // 8 * 8


def room_in_clusters(device: DeviceSpec) -> int:
    """Blocks that find room in clusters of 4 or 8: of an H200's 132 multiprocessors they fill 120."""
    return device.units * 10 // 11


def grid(k: Knobs, device: DeviceSpec) -> Grid:
    """Persistent blocks, one a multiprocessor that their clusters can fill."""
    blocks = device.units if k.cluster <= 2 else room_in_clusters(device)
    clusters = (k.cluster_m, k.cluster_n, k.cluster_k)
    return Grid(k.tile_m, k.tile_n, k.split_k, blocks, *clusters, bool(k.stream_k))


def workspace(k: Knobs, device: DeviceSpec) -> Workspace:
    """Counters and partial sums of tiles that several units share."""
    tile, owners = k.tile_m * k.tile_n * 4, 1 if k.schedule == "pingpong" else k.consumers
    if k.stream_k:
        return Workspace(4 * owners, 0, 2 * device.units * tile)
    if k.reduction == "kernel":
        return Workspace(0, k.split_k * tile)
    if k.split_k > 1:
        return Workspace(4 * owners, k.split_k * tile)
    return Workspace()
