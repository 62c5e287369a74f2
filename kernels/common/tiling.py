"""Grid, copies, heuristics and search rules of ``mma_sync`` and ``wmma``, whose threads copy tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

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


def ranked(configs: Iterable[T], problem: GemmProblem, device: DeviceSpec) -> list[T]:
    """The configs, the one with the highest wave efficiency times operand reuse first."""

    def score(k: T) -> float:
        reuse = k.tile_m * k.tile_n / (k.tile_m + k.tile_n)
        return cuda.wave_efficiency(problem, grid(k), device) * reuse / (reuse + 32)

    return sorted(configs, key=score, reverse=True)


def filling_split_k(k: Tiling, problem: GemmProblem, device: DeviceSpec, ctas_per_sm: int = 1) -> int:
    """The most splits, up to 8, that all run at once, so many CTAs an SM, and have four k tiles each."""
    tiles = Grid(k.tile_m, k.tile_n).tiles(problem) * problem.batch
    room = device.sm_count * ctas_per_sm
    fitting = (s for s in (8, 4, 2) if tiles * s <= room and problem.k >= 4 * s * k.tile_k)
    return next(fitting, 1)


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
    if tiles * (k.split_k - 1) >= 2 * device.sm_count or problem.k < 4 * k.split_k * k.tile_k:
        return "split-K pays only if the tiles leave SMs idle and k is long"
    return None


def why_swizzle_size(k: Tiling, problem: GemmProblem, _device: DeviceSpec) -> str | None:
    """The reason why swizzle_size exceeds the grid of tiles, or None."""
    along = -(-problem.m // k.tile_m) if k.raster == "m" else -(-problem.n // k.tile_n)
    if k.swizzle_size > 1 and k.swizzle_size >= 2 * along:
        return "swizzle_size exceeds the grid of tiles"
    return None
