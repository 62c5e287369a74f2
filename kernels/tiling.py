"""Rules that hold for every CUDA family whose blocks tile D and copy operand tiles to shared memory."""

from __future__ import annotations

from typing import Protocol

from kernels.cuda import wave_efficiency
from tilewright.artifact import Grid
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

Chunks = tuple[int, int]


class Tiling(Protocol):
    """The knobs that these rules read."""

    tile_m: int
    tile_n: int
    tile_k: int
    copy_bytes: int
    split_k: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""


def grid(k: Tiling) -> Grid:
    """One block a tile and split."""
    return Grid(k.tile_m, k.tile_n, k.split_k)


def operand_tiles(k: Tiling, problem: GemmProblem) -> tuple[Chunks, Chunks]:
    """(rows, 16-byte chunks of a row) of the A tile, stored M x K, and of the B tile as it is stored."""
    depth = problem.dtype.nbytes(k.tile_k) // 16
    a = (k.tile_m, depth)
    if problem.layout.b_transposed:
        return a, (k.tile_n, depth)
    return a, (k.tile_k, problem.dtype.nbytes(k.tile_n) // 16)


def copy_bytes(k: Tiling, problem: GemmProblem, operand: str) -> int:
    """Bytes of a global access to operand ``a`` or ``b``: the knob, as far as alignment allows."""
    return min(k.copy_bytes, problem.stride_alignment(operand))


def promise(k: Tiling, problem: GemmProblem, device: DeviceSpec) -> float:
    """A first rank of configs, 0 .. 1: useful share of the multiprocessors times operand reuse."""
    reuse = k.tile_m * k.tile_n / (k.tile_m + k.tile_n)
    return wave_efficiency(problem, grid(k), device) * reuse / (reuse + 32)


def why_copies(k: Tiling, problem: GemmProblem, _device: DeviceSpec) -> str | None:
    """Threads share the chunks of a tile row evenly."""
    for name, (_, chunks) in zip("AB", operand_tiles(k, problem), strict=True):
        if k.threads % chunks:
            return (
                f"{k.threads} threads are not a multiple of the {chunks} chunks of a row of the {name} tile"
            )
    return None


def why_oversized(k: Tiling, problem: GemmProblem, _device: DeviceSpec) -> str | None:
    """The tile is not far larger than D."""
    if (k.tile_m > 16 and k.tile_m >= 2 * problem.m) or (k.tile_n > 32 and k.tile_n >= 2 * problem.n):
        return "more than half of the tile would lie outside D"
    return None


def why_split(k: Tiling, problem: GemmProblem, device: DeviceSpec) -> str | None:
    """Split-K where it can pay."""
    if k.split_k == 1:
        return None
    tiles = Grid(k.tile_m, k.tile_n).tiles(problem) * problem.batch
    if tiles * (k.split_k - 1) >= 2 * device.units or problem.k < 4 * k.split_k * k.tile_k:
        return "split-K pays only where tiles leave multiprocessors idle and k is long"
    return None


def why_group(k: Tiling, problem: GemmProblem, _device: DeviceSpec) -> str | None:
    """A swizzle group is no wider than the tiles there are."""
    along = -(-problem.m // k.tile_m) if k.raster == "m" else -(-problem.n // k.tile_n)
    if k.group > 1 and k.group >= 2 * along:
        return "the group is wider than the grid of tiles"
    return None
