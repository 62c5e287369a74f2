"""Heuristic configs of family ``mma_sync``, and the rules that refuse configs not worth a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from kernels.base.family import Rule
from kernels.base.tile_hint import TileHint
from kernels.common import tiling
from kernels.mma_sync.config import ACCUMULATE_OF, Knobs
from kernels.mma_sync.layout import ROW_ALIGNMENT
from kernels.mma_sync.validity import why_registers, why_smem
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

# tile_m, tile_n, tile_k of 16-bit elements, warps_m, warps_n, stages
_SHAPES = (
    (128, 256, 32, 2, 4, 4),
    (256, 128, 32, 4, 2, 4),
    (128, 128, 32, 2, 2, 4),
    (128, 128, 64, 2, 2, 3),
    (128, 128, 64, 4, 2, 3),
    (128, 256, 64, 2, 4, 3),
    (256, 128, 64, 4, 2, 3),
    (128, 64, 64, 2, 2, 3),
    (64, 128, 64, 2, 2, 4),
    (64, 64, 64, 2, 2, 5),
    (32, 128, 64, 1, 4, 4),
    (32, 64, 64, 1, 2, 5),
    (16, 128, 64, 1, 4, 5),
    (16, 64, 64, 1, 2, 5),
)
_HINTED_TILE_K, _HINTED_STAGES = 32, 3  # if a hint has none
_ASYNC_BYTES = 8  # copies at least as wide keep up with the products for any rows
_REUSE = 128  # products of an element that pay for its copy to aligned rows


def heuristic_configs(problem: GemmProblem, device: DeviceSpec) -> list[Knobs]:
    """Configs of tile shapes that are fast on other problems; some may be invalid."""
    filled = (_filled(problem, device, *shape) for shape in _SHAPES)
    return [config for config in filled if _why_spills(config, problem, device) is None]


def repack_pays(problem: GemmProblem) -> bool:
    """Whether rows of A or B that allow only narrow copies are read often enough to be copied before."""
    uses = {"a": problem.n, "b": problem.m}
    narrow = [operand for operand in uses if problem.stride_alignment(operand) < _ASYNC_BYTES]
    return bool(narrow) and all(uses[operand] >= _REUSE for operand in narrow)


def with_other_loads(configs: Iterable[Knobs], problem: GemmProblem, device: DeviceSpec) -> Iterator[Knobs]:
    """The same tiles, with rows that are not aligned copied before, or else not copied before."""
    others = (dataclasses.replace(config, repack=1 - config.repack) for config in configs)
    return (config for config in others if _why_spills(config, problem, device) is None)


def config_from_hint(hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The tile and splits of a hint, with warp tiles of at most 64 x 64; it may be invalid."""
    tile_k = (hint.tile_k or _HINTED_TILE_K) * problem.dtype.bits // 16
    warps = (_warps(hint.tile_m), _warps(hint.tile_n))
    shape = (hint.tile_m, hint.tile_n, tile_k, *warps, hint.stages or _HINTED_STAGES)
    return dataclasses.replace(_filled(problem, device, *shape), split_k=hint.split_k)


def _warps(tile: int) -> int:
    """Warps along an axis of a tile: 64 elements each, or 32 if the tile is smaller than two of those."""
    return max(1, tile // (64 if tile >= 128 else 32))


def _filled(problem: GemmProblem, device: DeviceSpec, *shape: int) -> Knobs:
    tile_m, tile_n, depth, warps_m, warps_n, stages = shape
    config = Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warps_m=warps_m,
        warps_n=warps_n,
        tile_k=depth * 16 // problem.dtype.bits,
        stages=stages,
        fragment_load="direct" if problem.dtype is DType.FLOAT64 else "ldmatrix",
        accumulate=ACCUMULATE_OF[problem.accumulate],
        swizzle_size=8 if -(-problem.m // tile_m) >= 8 else 1,
        repack=int(repack_pays(problem)),
    )
    ctas_per_sm = 2 if _fits_twice(config, problem, device) else 1
    return dataclasses.replace(
        config,
        split_k=tiling.filling_split_k(config, problem, device, ctas_per_sm),
        min_ctas_per_sm=ctas_per_sm,
    )


def _fits_twice(c: Knobs, p: GemmProblem, d: DeviceSpec) -> bool:
    """Whether an SM can hold two CTAs, of which one multiplies while the other waits or stores."""
    twice = dataclasses.replace(c, min_ctas_per_sm=2)
    return why_smem(twice, p, d) is None and why_registers(twice, p, d) is None


def _why_depth(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not 64 <= p.dtype.nbytes(c.tile_k) <= 128:
        return "rows of 64 and 128 bytes a stage: shorter rows copy too little, longer ones cost stages"
    return None


def _why_slow_loads(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.fragment_load == "direct" and p.dtype.size <= 4:
        return "an ldmatrix moves four times as much as a direct load"
    return None


def _why_odd_warps(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.warp_m > 64 or not 16 <= c.warp_n <= 64:
        return "warp tiles beyond 64 x 64 spill, and of fewer than 16 columns leave ldmatrix half idle"
    if c.warp_m * c.warp_n < min(1024, c.tile_m * c.tile_n // 2):
        return "warp tiles this small load more than they multiply"
    return None


def _why_few_warps(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.threads < 64 or (c.warps_k > 1 and c.tile_m * c.tile_n > 128 * 128):
        return "a CTA needs two warps to hide latency; warps_k pays on small tiles only"
    return None


def _why_spills(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.warp_m * c.warp_n < 64 * 64:
        return None
    along_m_or_n = {"a": p.layout.a_transposed, "b": not p.layout.b_transposed}
    if any(along_m_or_n[x] and p.stride_alignment(x) < ROW_ALIGNMENT and not c.repack for x in along_m_or_n):
        return "beside the addresses of odd rows along m or n, warp tiles of 64 x 64 spill"
    if p.layout.a_transposed and c.threads <= 128 and p.dtype.nbytes(c.tile_k) > 64:
        return "four warps copy 128 bytes of k a stage: beside their addresses, warp tiles of 64 x 64 spill"
    return None


SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_k",), _why_depth),
    Rule(("fragment_load",), _why_slow_loads),
    Rule(("tile_m", "tile_n"), tiling.why_oversized),
    Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_odd_warps),
    Rule(("tile_m", "tile_n", "warps_m", "warps_n", "warps_k"), _why_few_warps),
    Rule(("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "warps_k", "repack"), _why_spills),
    Rule(("tile_m", "tile_n", "tile_k", "split_k"), tiling.why_split),
    Rule(("tile_m", "tile_n", "raster", "swizzle_size"), tiling.why_swizzle_size),
)
