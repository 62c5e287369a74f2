"""Tiles, shared memory, registers, grid and raster order of family ``wgmma_ws``, as functions of a config."""

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
    """Alignment in bytes of the rows of A and B, 256 at most; repacked rows are aligned to 128 bytes."""
    extents = (
        problem.m if problem.layout.a_transposed else problem.k,
        problem.k if problem.layout.b_transposed else problem.n,
    )
    rows = [extent * problem.dtype.size for extent in extents]
    return math.gcd(256, *(-(-row // 128) * 128 if row % 16 else row for row in rows))


def slice_n(k: Knobs) -> int:
    """Extent along the N of wgmma of the slice of a warpgroup tile that one consumer stores."""
    return k.warpgroup_tile[1] // k.cluster_k // (k.split_k if k.reduction == "reduce_scatter" else 1)


def subtile_n(k: Knobs, sector_aligned_store: int) -> int:
    """Extent of an epilogue subtile along the N of wgmma: the widest one that divides the slice.

    With swap_ab it is up to 64 rows. Otherwise it is as many columns as a TMA swizzle is wide or, if TMA
    stores it, an odd number of 16-byte chunks, whose rows fall on different banks without a swizzle. Those
    fill the last L2 sector of a row only by half; ``sector_aligned_store`` excludes them.
    """
    whole = slice_n(k)
    odd = range(8, 105, 16) if k.epilogue in TMA_STORES and not sector_aligned_store else (8,)
    widths = range(8, 65, 8) if k.swap_ab else (16, 32, 64, *odd)
    return max((width for width in widths if whole % width == 0), default=8)


def subtile(k: Knobs) -> tuple[int, int]:
    """(rows, columns) of an epilogue subtile: 64 along the M of wgmma, ``subtile_n`` along its N."""
    width = subtile_n(k, k.sector_aligned_store)
    return (width, 64) if k.swap_ab else (64, width)


def subtiles(k: Knobs) -> int:
    """Epilogue subtiles in the slice that a consumer finishes."""
    rows, columns = subtile(k)
    return k.warpgroup_tile[0] * slice_n(k) // (rows * columns)


def subtile_swizzle(k: Knobs) -> int:
    """TMA swizzle of an epilogue subtile in bytes, 0 for none."""
    row_bytes = subtile(k)[1] * 2
    return row_bytes if row_bytes in (32, 64, 128) else 0


def staging_bytes(k: Knobs) -> int:
    """Shared memory of all store stages, in bytes."""
    rows, columns = subtile(k)
    return 0 if k.epilogue == "direct" else k.consumers * k.store_stages * rows * columns * 2


def loads_c(k: Knobs, problem: GemmProblem) -> bool:
    """Whether TMA loads C into the store stages; otherwise each thread loads its elements."""
    return problem.has_c and k.epilogue in TMA_STORES and k.reduction == "none" and not k.swap_ab


def exchange_bytes(k: Knobs) -> int:
    """Shared memory, in bytes, for accumulators received from the CTA with the other half of k."""
    extent, width = k.warpgroup_tile
    return 0 if k.cluster_k == 1 else k.consumers * extent * width // 2 * 4


def stage_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Shared memory of one stage with its two barriers, in bytes."""
    return (k.tile_m + k.tile_n) * k.tile_k * problem.dtype.size + 16


def fixed_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory beside the stages, in bytes: store stages, exchange, barriers and flags."""
    of_c = 8 * k.store_stages if loads_c(k, problem) else 0
    return staging_bytes(k) + exchange_bytes(k) + (16 + of_c + 4) * k.consumers


def smem_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory in bytes."""
    return k.stages * stage_bytes(k, problem) + fixed_bytes(k, problem)


def k_tiles(k: Knobs, problem: GemmProblem) -> int:
    """k tiles that a CTA loads for a work tile."""
    return -(-problem.k // (k.tile_k * k.split_k * k.cluster_k))


def accumulator_registers(k: Knobs, problem: GemmProblem) -> int:
    """Accumulator registers of a consumer's thread."""
    extent, width = k.warpgroup_tile
    registers = extent * width // 128 * (2 if k.promote else 1)
    return registers // 2 if problem.accumulate is DType.FLOAT16 else registers


def pending_registers(k: Knobs) -> int:
    """Registers of a consumer's thread that hold elements of the previous tile until they are stored."""
    extent, width = k.warpgroup_tile
    return extent * width // 256 if k.epilogue == "overlapped" else 0


def registers(k: Knobs) -> int | None:
    """Registers per thread that the compiled kernel declares; None if the compiler chooses.

    With several consumers the warp roles reallocate registers, and the kernel declares the even split.
    """
    return None if k.consumers == 1 else 65536 // k.threads // 8 * 8


def grid(k: Knobs, device: DeviceSpec) -> Grid:
    """Persistent CTAs, one for each SM that clusters can fill."""
    ctas = cuda.room_in_clusters(k.cluster, device)
    clusters = (k.cluster_m, k.cluster_n, k.cluster_k)
    return Grid(k.tile_m, k.tile_n, k.split_k, ctas, *clusters)


LOAD_INTERVAL = 512  # clocks: of 256 to 1024 none is faster


def load_interval(k: Knobs, problem: GemmProblem) -> int:
    """The clock multiple at which a CTA starts its loads; 0 to load at once.

    CTAs of a GPC that load the same lines at the same time share one request. Nonzero only if the CTA order
    puts neighbouring tiles in a GPC, and if a stage takes long enough that waiting for the next multiple
    costs nothing.
    """
    if k.cta_order != "gpc" or k.split_k > 1:
        return 0
    clocks = k.tile_m * k.tile_n * k.tile_k * problem.dtype.size // 2 // MULTIPLY_ADDS
    return LOAD_INTERVAL if 2 * clocks >= 3 * LOAD_INTERVAL else 0


def workspace(k: Knobs) -> Workspace:
    """Semaphores and partials of tiles that are split along k."""
    tile, owners = k.tile_m * k.tile_n * 4, 1 if k.schedule == "pingpong" else k.consumers
    if k.reduction == "kernel":
        return Workspace(0, k.split_k * tile)
    if k.reduction == "reduce_scatter":
        return Workspace(SEMAPHORE_BYTES * owners, k.split_k * tile)
    return Workspace()


SMALL = 64  # rows of D up to which swap_ab always pays: weights fill the M of wgmma
GPC_CLUSTERS = 8  # clusters that a GPC holds, about
_SWIZZLE_SIZES = (GPC_CLUSTERS, 4, 16, 2)
_REQUEST = 0.1  # cost of a byte from the L2 relative to one from DRAM


def clusters_at_once(ctas: int, device: DeviceSpec) -> int:
    """Number of clusters of ``ctas`` CTAs that are resident at once."""
    return max(cuda.room_in_clusters(ctas, device) // ctas, 1)


def clusters(problem: GemmProblem, extent: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of clusters that cover D if each computes ``extent`` (rows, columns) of it."""
    return -(-problem.m // extent[0]), -(-problem.n // extent[1])


def single_wave(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], ctas: int, split_k: int = 1
) -> bool:
    """Whether all clusters of a launch run at once."""
    rows, columns = clusters(problem, extent)
    return rows * columns * problem.batch * split_k <= clusters_at_once(ctas, device)


def l2_keeps_bytes(device: DeviceSpec) -> int:
    """Bytes of an operand that the L2 keeps from wave to wave while the other operand streams through."""
    return device.l2_bytes // 3


@functools.lru_cache(maxsize=4096)
def raster_order(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], ctas: int
) -> tuple[str, int, int]:
    """The raster, swizzle_size and snake that move the fewest bytes by a simple model.

    Args:
        extent: rows and columns of D that a cluster computes.
        ctas: CTAs of a cluster.
    """
    rows, columns = clusters(problem, extent)
    if min(rows, columns) == 1:
        return "m", 1, 0
    orders = [(raster, swizzle_size) for raster, swizzle_size in itertools.product("mn", _SWIZZLE_SIZES)]
    possible = [one for one in orders if one[1] <= (rows if one[0] == "m" else columns)]
    if single_wave(problem, device, extent, ctas):
        # The clusters that read the same part of the larger operand follow each other.
        possible = [
            ("m", min(GPC_CLUSTERS, 2 ** (rows - 1).bit_length() if cuda.weights(problem) == "b" else 1))
        ]
    raster, swizzle_size = min(
        possible or [("m", 1)],
        key=lambda one: _moved(problem, device, extent if one[0] == "m" else extent[::-1], ctas, *one),
    )
    return raster, swizzle_size, int(1 < swizzle_size < (rows if raster == "m" else columns))


def _moved(
    problem: GemmProblem,
    device: DeviceSpec,
    extent: tuple[int, int],
    ctas: int,
    raster: str,
    swizzle_size: int,
) -> float:
    """Rows of A and B read from DRAM, plus a tenth of the rows that GPCs request from the L2.

    The resident clusters cover a rectangle that is ``swizzle_size`` clusters deep, or a multiple of that. The
    L2 keeps the rows that they share for the next wave if they fit, and likewise a whole operand across.
    """
    size = (problem.m, problem.n) if raster == "m" else (problem.n, problem.m)
    along, across = (-(-whole // step) for whole, step in zip(size, extent, strict=True))
    kept = l2_keeps_bytes(device) / (problem.k * problem.dtype.size)
    at_once = clusters_at_once(ctas, device)
    depth = min(max(swizzle_size, at_once / across), along)
    along_rows = size[0] if depth * extent[0] <= kept else size[0] * max(across * depth / at_once, 1)
    across_rows = size[1] if size[1] <= kept else size[1] * along / depth
    asked = min(GPC_CLUSTERS, swizzle_size) * extent[0] + max(GPC_CLUSTERS / swizzle_size, 1) * extent[1]
    return along_rows + across_rows + _REQUEST * along * across / GPC_CLUSTERS * asked
