"""Grid, copies, cost model and search rules of ``mma_sync`` and ``wmma``, whose threads copy tiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

from kernels.common import cuda
from tilewright.artifact import Grid, Preconditions
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

Chunks = tuple[int, int]


class Tiling(Protocol):
    """The knobs that these functions read."""

    tile_m: int
    tile_n: int
    tile_k: int
    copy_bytes: int
    split_k: int
    raster: str
    swizzle_size: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""


T = TypeVar("T", bound=Tiling)

LEAST_ASYNC = 4  # bytes of a copy that does not pass through registers
_WIDE = 8  # bytes of an access that costs no more per byte than one of 16
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_LEAST_ROW_BYTES = 64  # of tile_k: two k steps, for double buffering
# Clocks: of a product of two bytes, for each byte; of a load; of the last arrival at a counter.
_CLOCKS_PER_PRODUCT, _LOAD_CLOCKS, _ARRIVE_CLOCKS = 1 / 2048, 700, 2000
_LOADS_AT_ONCE = 40  # of a thread, into registers
_SM_BYTES_PER_CLOCK = 32  # between an SM and the L2


def grid(k: Tiling) -> Grid:
    """One CTA a tile and split."""
    return Grid(k.tile_m, k.tile_n, k.split_k)


def operand_tiles(k: Tiling, problem: GemmProblem) -> tuple[Chunks, Chunks]:
    """(rows, 16-byte chunks of a row) of the A tile and of the B tile, each as it is stored."""

    def tile(extent: int, k_major: bool) -> Chunks:
        rows, columns = (extent, k.tile_k) if k_major else (k.tile_k, extent)
        return rows, problem.dtype.nbytes(columns) // 16

    layout = problem.layout
    return tile(k.tile_m, not layout.a_transposed), tile(k.tile_n, layout.b_transposed)


def copy_bytes(k: Tiling, problem: GemmProblem, operand: str) -> int:
    """Bytes of a global access to operand ``a`` or ``b``: the knob, or less if the alignment requires."""
    return min(k.copy_bytes, problem.stride_alignment(operand))


def copy_macros(k: Tiling, problem: GemmProblem) -> dict[str, int | str]:
    """The macros of both operands' copies."""
    return {"COPY_A": copy_bytes(k, problem, "a"), "COPY_B": copy_bytes(k, problem, "b")}


def preconditions(k: Tiling, problem: GemmProblem) -> Preconditions:
    """The alignment of A and B that their copies require."""
    return cuda.preconditions(problem, copy_bytes(k, problem, "a"), copy_bytes(k, problem, "b"))


def clocks(k: Tiling, problem: GemmProblem, device: DeviceSpec, widths: Iterable[int]) -> float:
    """An estimate of the clocks of a launch, for comparison with others of the problem.

    The SM with the most CTAs copies and multiplies their k tiles, one by one, and stores their tiles.
    A byte of an operand costs as much as 16 products of 16-bit elements, or more if its copies are narrow.
    Copies through registers expose their loads in each k tile of the first CTA; later CTAs hide theirs. The
    last CTA of a split tile reads all partials.

    Args:
        widths: bytes of a global access to A and to B.
    """
    width_a, width_b = widths
    tile = k.tile_m * k.tile_n
    ctas = -(-grid(k).tiles(problem) * k.split_k * problem.batch // device.sm_count)
    k_tiles, row_bytes = tiles_per_split(k, problem), problem.dtype.nbytes(k.tile_k)
    copies = k.tile_m * _clocks_per_byte(width_a) + k.tile_n * _clocks_per_byte(width_b)
    main_loop = k_tiles * row_bytes * (tile * _CLOCKS_PER_PRODUCT + copies)
    stores = tile * problem.out.size * _clocks_per_byte(problem.stride_alignment("d"))
    loads = sum(
        rows * row_bytes / (width * k.threads)
        for rows, width in ((k.tile_m, width_a), (k.tile_n, width_b))
        if width < LEAST_ASYNC
    )
    exposed = k_tiles * _LOAD_CLOCKS * max(1, loads / _LOADS_AT_ONCE) if loads else 0
    partials = (1 + k.split_k) * tile * cuda.accumulator_bytes(problem) / _SM_BYTES_PER_CLOCK
    reduction = _ARRIVE_CLOCKS + partials if k.split_k > 1 else 0
    return ctas * (main_loop + stores) + exposed + reduction


def _clocks_per_byte(width: int) -> float:
    """Clocks of an SM for a byte of accesses so wide; their number limits narrow ones."""
    return 1 / 64 if width >= _WIDE else 1 / (6 * width)


def trimmed_tile_k(tile_k: int, problem: GemmProblem) -> int:
    """``tile_k``, halved down to two k steps while a half holds all k: the rest would be zeros."""
    while problem.dtype.nbytes(tile_k) > _LEAST_ROW_BYTES and tile_k // 2 >= problem.k:
        tile_k //= 2
    return tile_k


def tiles_per_split(k: Tiling, problem: GemmProblem) -> int:
    """The k tiles of the longest split."""
    return -(-problem.k // (k.tile_k * k.split_k))


def with_best_split(k: T, problem: GemmProblem, device: DeviceSpec, cost: Callable[[T], float]) -> T:
    """The config with the number of splits that costs least, of those that may pay; in plain raster order
    where that does not matter."""
    split: list[T] = [dataclasses.replace(cast(Any, k), split_k=splits) for splits in SPLITS]
    best = min((one for one in split if why_split(one, problem, device) is None), key=cost)
    plain: T = dataclasses.replace(cast(Any, best), swizzle_size=1)
    return plain if why_raster(best, problem, device) else best


def why_copies(k: Tiling, problem: GemmProblem, _device: DeviceSpec) -> str | None:
    """The reason why threads cannot divide the chunks of a tile row evenly, or None."""
    for name, (_, chunks) in zip("AB", operand_tiles(k, problem), strict=True):
        if k.threads % chunks:
            return (
                f"{k.threads} threads are not a multiple of the {chunks} chunks of a row of the {name} tile"
            )
    return None


def why_oversized(k: Tiling, problem: GemmProblem, _device: DeviceSpec) -> str | None:
    """The reason why the tile is far larger than D, or None."""
    if (k.tile_m > 16 and k.tile_m >= 2 * problem.m) or (k.tile_n > 32 and k.tile_n >= 2 * problem.n):
        return "more than half of the tile would lie outside D"
    return None


def why_split(k: Tiling, problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why split-K cannot pay, or None."""
    if k.split_k == 1:
        return None
    tiles = Grid(k.tile_m, k.tile_n).tiles(problem) * problem.batch
    k_tiles = -(-problem.k // k.tile_k)
    fewer = max(splits for splits in SPLITS if splits < k.split_k)
    if -(-problem.k // (k.tile_k * fewer)) <= tiles_per_split(k, problem):
        return f"{fewer} splits would be as short"
    if tiles * (k.split_k - 1) >= 2 * device.sm_count:
        return "split-K pays only if the tiles leave SMs idle"
    if k_tiles < 4 * k.split_k and tiles * k.split_k > 2 * device.sm_count:
        return "short splits pay only if all run at once"
    return None


def why_raster(k: Tiling, problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why the raster order cannot matter or exceeds the grid of tiles, or None."""
    ctas = Grid(k.tile_m, k.tile_n).tiles(problem) * k.split_k * problem.batch
    small = ctas <= device.sm_count and problem.operand_bytes <= device.l2_bytes // 4
    if small and (k.raster, k.swizzle_size) != ("m", 1):
        return "all CTAs run at once on operands that the L2 holds: raster=m, swizzle_size=1"
    along = -(-problem.m // k.tile_m) if k.raster == "m" else -(-problem.n // k.tile_n)
    if k.swizzle_size > 1 and k.swizzle_size >= 2 * along:
        return "swizzle_size exceeds the grid of tiles"
    return None
