"""What follows from the knobs of family ``wgmma_ws``: tiles, bytes, registers and grid."""

from __future__ import annotations

import math

from kernels import cuda
from kernels.families.wgmma_ws_knobs import TMA_STORES, Knobs
from kernels.wgmma_layout import OperandTile
from tilewright.artifact import Grid, Workspace
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

MULTIPLY_ADDS = 2048  # of 16-bit wgmma, per multiprocessor and clock
MOST_PARTS = 16  # that wgmma_ws/tally.cuh has bits for
TALLY_BYTES = 32  # from one of its tallies to the next


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
    return k.share[1] // k.cluster_k // (k.split_k if k.reduction == "shares" else 1)


def store_width(k: Knobs, whole_sectors: int) -> int:
    """How much along wgmma's N a staged box of D holds: as much as divides it.

    Up to 64 rows with swap_ab. Else columns, as many as a swizzle of TMA is wide, or, where TMA stores them,
    an odd number of 16-byte chunks, which are on different banks without a swizzle. TMA writes those in
    sectors of the L2 that it fills by half; ``whole_sectors`` forbids them.
    """
    whole = own_width(k)
    odd = range(8, 105, 16) if k.epilogue in TMA_STORES and not whole_sectors else (8,)
    widths = range(8, 65, 8) if k.swap_ab else (16, 32, 64, *odd)
    return max((width for width in widths if whole % width == 0), default=8)


def store_box(k: Knobs) -> tuple[int, int]:
    """(rows, columns) of D in one staged box: 64 along wgmma's M, ``store_width`` along its N."""
    width = store_width(k, k.whole_sectors)
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
    return extent * width // 256 if k.epilogue == "deferred" else 0


def registers(k: Knobs) -> int | None:
    """Registers of a thread as the compiled kernel states them, or None where they follow from its code.

    With several consumers the roles move registers among each other, and the kernel states the even share.
    """
    return None if k.consumers == 1 else 65536 // k.threads // 8 * 8


def grid(k: Knobs, device: DeviceSpec) -> Grid:
    """Persistent blocks, one a multiprocessor that their clusters can fill."""
    blocks = cuda.room_in_clusters(k.cluster, device)
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
        counter = TALLY_BYTES if k.reduction == "shares" else 4
        return Workspace(counter * owners, k.split_k * tile)
    return Workspace()
