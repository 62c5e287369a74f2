"""Heuristic configs of family ``wmma``, and the rules that refuse configs not worth a trial."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import tiling
from kernels.wmma.config import Knobs
from kernels.wmma.validity import WARP_TILES, accumulate_of
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

# tile_m, tile_n, tile_k, warps_m, warps_n, stages: the tiles of the reference kernels and their neighbours.
_SHAPES = (
    (128, 128, 32, 2, 2, 4),
    (128, 256, 32, 2, 4, 3),
    (256, 128, 32, 4, 2, 3),
    (128, 64, 32, 2, 2, 4),
    (64, 128, 32, 2, 2, 4),
    (64, 64, 64, 2, 2, 3),
    (64, 64, 32, 1, 2, 4),
    (32, 128, 64, 1, 4, 3),
    (32, 64, 64, 1, 2, 4),
    (16, 64, 64, 1, 2, 4),
)


def heuristic_configs(problem: GemmProblem, device: DeviceSpec) -> list[Knobs]:
    """Configs of the tile shapes for the problem, those of the fewest clocks first; some may be invalid."""

    def clocks(config: Knobs) -> float:
        widths = (tiling.copy_bytes(config, problem, operand) for operand in ("a", "b"))
        return tiling.clocks(config, problem, device, widths)

    filled = (_filled(problem, *shape) for shape in _SHAPES)
    split = (tiling.with_best_split(config, problem, device, clocks) for config in filled)
    return sorted(split, key=clocks)


def _filled(problem: GemmProblem, *shape: int) -> Knobs:
    tile_m, tile_n, tile_k, warps_m, warps_n, stages = shape
    return Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warps_m=warps_m,
        warps_n=warps_n,
        tile_k=tiling.trimmed_tile_k(tile_k, problem),
        stages=stages,
        accumulate=accumulate_of(problem),
        swizzle_size=8 if -(-problem.m // tile_m) >= 8 else 1,
    )


def _why_odd_warps(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.warp_m > 64 or c.warp_n > 64:
        return "warp tiles beyond 64 x 64 spill"
    if c.warp_m * c.warp_n < min(1024, c.tile_m * c.tile_n // 2):
        return "warp tiles this small load more than they multiply"
    if c.threads < 64:
        return "a CTA needs two warps to hide latency"
    return None


SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "tile_n"), tiling.why_oversized),
    Rule(WARP_TILES, _why_odd_warps),
    Rule(("tile_m", "tile_n", "tile_k", "split_k"), tiling.why_split),
    Rule(("tile_m", "tile_n", "split_k", "raster", "swizzle_size"), tiling.why_raster),
)
