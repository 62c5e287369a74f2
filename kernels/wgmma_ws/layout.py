"""What follows from the knobs of family ``wgmma_ws``: tiles, bytes, registers and grid."""

from __future__ import annotations

import functools
import itertools
import math

from kernels.common import cuda
from kernels.common.wgmma import OperandTile
from kernels.wgmma_ws.config import TMA_STORES, Knobs
from tilewright.artifact import Grid, Workspace
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

MULTIPLY_ADDS = 2048  # of 16-bit wgmma, per SM and clock
MOST_SPLITS = 16  # for which the word of SplitKSemaphore of wgmma_ws/split_k.cuh has bits
SEMAPHORE_BYTES = 32  # from one split-K semaphore to the next


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


def own_width(k: Knobs) -> int:
    """How much along wgmma's N a consumer finishes of its share of a tile."""
    return k.share[1] // k.cluster_k // (k.split_k if k.reduction == "reduce_scatter" else 1)


def store_width(k: Knobs, sector_aligned_store: int) -> int:
    """How much along wgmma's N a staged box of D holds: as much as divides it.

    Up to 64 rows with swap_ab. Else columns, as many as a swizzle of TMA is wide, or, where TMA stores them,
    an odd number of 16-byte chunks, which are on different banks without a swizzle. TMA writes those in
    sectors of the L2 that it fills by half; ``whole_sectors`` forbids them.
    """
    whole = own_width(k)
    odd = range(8, 105, 16) if k.epilogue in TMA_STORES and not sector_aligned_store else (8,)
    widths = range(8, 65, 8) if k.swap_ab else (16, 32, 64, *odd)
    return max((width for width in widths if whole % width == 0), default=8)


def store_box(k: Knobs) -> tuple[int, int]:
    """(rows, columns) of D in one staged box: 64 along wgmma's M, ``store_width`` along its N."""
    width = store_width(k, k.sector_aligned_store)
    return (width, 64) if k.swap_ab else (64, width)


def store_boxes(k: Knobs) -> int:
    """Staged boxes that hold a consumer's share of a tile."""
    rows, columns = store_box(k)
    return k.share[0] * own_width(k) // (rows * columns)


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
    """Dynamic shared memory beside the stages: staged boxes, exchanged sums, barriers and flags."""
    return store_bytes(k) + exchange_bytes(k) + (16 + 4) * k.consumers


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
    return extent * width // 256 if k.epilogue == "overlapped" else 0


def registers(k: Knobs) -> int | None:
    """Registers of a thread as the compiled kernel states them, or None where they follow from its code.

    With several consumers the roles move registers among each other, and the kernel states the even share.
    """
    return None if k.consumers == 1 else 65536 // k.threads // 8 * 8


def grid(k: Knobs, device: DeviceSpec) -> Grid:
    """Persistent blocks, one an SM that their clusters can fill."""
    blocks = cuda.room_in_clusters(k.cluster, device)
    clusters = (k.cluster_m, k.cluster_n, k.cluster_k)
    return Grid(k.tile_m, k.tile_n, k.split_k, blocks, *clusters)


LOAD_INTERVAL = 512  # clocks: of 256 to 1024 none is faster


def load_interval(k: Knobs, problem: GemmProblem) -> int:
    """Clocks at whose multiples a CTA loads, so that those of a GPC load together what they share; 0 at once.

    Only with neighbouring tiles in a GPC, and where a stage is multiplied in so many clocks that waiting for
    the next multiple does not delay it.
    """
    if k.cta_order != "gpc" or k.split_k > 1:
        return 0
    clocks = k.tile_m * k.tile_n * k.tile_k * problem.dtype.size // 2 // MULTIPLY_ADDS
    return LOAD_INTERVAL if 2 * clocks >= 3 * LOAD_INTERVAL else 0


def workspace(k: Knobs) -> Workspace:
    """Counters and partial sums of tiles that several units share."""
    tile, owners = k.tile_m * k.tile_n * 4, 1 if k.schedule == "pingpong" else k.consumers
    if k.reduction == "kernel":
        return Workspace(0, k.split_k * tile)
    if k.split_k > 1:
        counter = SEMAPHORE_BYTES if k.reduction == "reduce_scatter" else 4
        return Workspace(counter * owners, k.split_k * tile)
    return Workspace()


SMALL = 64  # extents of D up to which weights fill wgmma's M rather than activations
BAND = 8  # clusters: about as many as a GPC has room for
_GROUPS = (BAND, 4, 16, 2)
_REQUEST = 0.1  # what a byte asked of the L2 costs of one that comes from DRAM


def running(blocks: int, device: DeviceSpec) -> int:
    """Clusters of so many blocks that run at once."""
    return max(cuda.room_in_clusters(blocks, device) // blocks, 1)


def clusters(problem: GemmProblem, extent: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of clusters that cover a D, where one computes ``extent`` rows and columns of it."""
    return -(-problem.m // extent[0]), -(-problem.n // extent[1])


def single_wave(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], blocks: int, split_k: int = 1
) -> bool:
    """Whether all clusters of a launch run at once."""
    rows, columns = clusters(problem, extent)
    return rows * columns * problem.batch * split_k <= running(blocks, device)


def kept_bytes(device: DeviceSpec) -> int:
    """What an operand may take to stay in the L2 from wave to wave, while the other passes through."""
    return device.l2_bytes // 3


@functools.lru_cache(maxsize=4096)
def walk(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], blocks: int
) -> tuple[str, int, int]:
    """Raster, group and snake that should move the fewest bytes.

    Args:
        extent: rows and columns of D that a cluster computes.
        blocks: of a cluster.
    """
    rows, columns = clusters(problem, extent)
    if min(rows, columns) == 1:
        return "m", 1, 0
    walks = [(raster, swizzle_size) for raster, swizzle_size in itertools.product("mn", _GROUPS)]
    possible = [one for one in walks if one[1] <= (rows if one[0] == "m" else columns)]
    if single_wave(problem, device, extent, blocks):
        possible = [("m", BAND)] if rows >= BAND else []
    raster, swizzle_size = min(
        possible or [("m", 1)],
        key=lambda one: _moved(problem, device, extent if one[0] == "m" else extent[::-1], blocks, *one),
    )
    return raster, swizzle_size, int(1 < swizzle_size < (rows if raster == "m" else columns))


def _moved(
    problem: GemmProblem,
    device: DeviceSpec,
    extent: tuple[int, int],
    blocks: int,
    raster: str,
    swizzle_size: int,
) -> float:
    """Rows of A and of B that come from DRAM, and a tenth of those that GPCs ask the L2 for.

    Clusters that run at once lie in a rectangle of ``group`` along the band, or of several bands. What they
    share of an operand along the band stays in the L2 for the next wave if it is small enough, and so does
    a whole operand across.
    """
    size = (problem.m, problem.n) if raster == "m" else (problem.n, problem.m)
    along, across = (-(-whole // step) for whole, step in zip(size, extent, strict=True))
    kept = kept_bytes(device) / (problem.k * problem.dtype.size)
    at_once = running(blocks, device)
    depth = min(max(swizzle_size, at_once / across), along)
    band = size[0] if depth * extent[0] <= kept else size[0] * max(across * depth / at_once, 1)
    other = size[1] if size[1] <= kept else size[1] * along / depth
    asked = min(BAND, swizzle_size) * extent[0] + max(BAND / swizzle_size, 1) * extent[1]
    return band + other + _REQUEST * along * across / BAND * asked
