"""Heuristic configs of family ``mma_sync``, and the rules that refuse configs not worth a trial."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from kernels.base.family import Rule
from kernels.base.tile_hint import TileHint
from kernels.common import tiling
from kernels.mma_sync.config import ACCUMULATE_OF, LEGAL_SPLITS, Knobs
from kernels.mma_sync.layout import ROW_ALIGNMENT, copy_bytes, repacks
from kernels.mma_sync.validity import why_registers, why_smem
from tilewright.artifact import Grid
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
    (128, 96, 64, 2, 2, 3),
    (128, 64, 64, 2, 2, 3),
    (128, 32, 64, 4, 1, 3),
    (64, 128, 64, 2, 2, 4),
    (64, 96, 64, 2, 2, 4),
    (64, 64, 64, 2, 2, 5),
    (64, 64, 128, 2, 2, 3),
    (64, 32, 64, 2, 2, 5),
    (32, 128, 64, 1, 4, 4),
    (32, 64, 64, 1, 2, 5),
    (32, 64, 128, 2, 2, 3),
    (32, 32, 64, 2, 2, 5),
    (32, 32, 128, 2, 2, 4),
    (16, 128, 64, 1, 4, 5),
    (16, 64, 64, 1, 2, 5),
)
_HINTED_TILE_K, _HINTED_STAGES = 32, 3  # if a hint has none
_REPACK_CLOCKS = 5000  # of the launches before, some 3 us
_MEMORY_BYTES_PER_CLOCK = 16  # of an SM
_CLOSE = 1.5  # times the fewest clocks: another way to load may be faster
_SMALL_TILE = 64 * 64
# Bytes of a copy that goes through the L1; those of 16 bypass it, and the L2 answers all CTAs of a tile that
# they share: 65536 x 24 x 24 takes 9.1 us instead of 4.9.
_THROUGH_L1 = 8


def heuristic_configs(problem: GemmProblem, device: DeviceSpec) -> list[Knobs]:
    """Configs of tile shapes that are fast on other problems, those of the fewest clocks first.

    Where rows are not aligned, each shape has a config that copies them before and one that does not; they
    alternate if neither way is much slower. Some configs may be invalid.
    """

    def cost(config: Knobs) -> float:
        return clocks(config, problem, device)

    filled = (config for shape in _SHAPES for config in _filled(problem, device, *shape))
    split = (tiling.with_best_split(config, problem, device, cost) for config in filled)
    unique: dict[tuple[int, ...], Knobs] = {}
    for config in sorted(split, key=cost):
        if _why_spills(config, problem, device) is None:
            unique.setdefault(_shape(config), config)
    ranked = list(unique.values())
    usual = [config for config in ranked if config.repack == ranked[0].repack]
    others = [config for config in ranked if config not in usual]
    if others and cost(others[0]) < _CLOSE * cost(usual[0]):
        pairs = itertools.chain(*itertools.zip_longest(usual, others))
        ranked = [config for config in pairs if config]
    return [_trimmed(config, problem) for config in ranked]


def _shape(config: Knobs) -> tuple[int, ...]:
    """The key by which configs count as one shape; for small tiles it leaves out depth and warps."""
    tile = (config.repack, config.tile_m, config.tile_n)
    return tile if config.tile_m * config.tile_n <= _SMALL_TILE else (*tile, config.tile_k, config.warps_m)


def clocks(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """An estimate of the clocks of a launch and of the copies before it, for comparison only."""
    widths = (copy_bytes(config, problem, operand) for operand in ("a", "b"))
    return tiling.clocks(config, problem, device, widths) + _repack_clocks(config, problem, device)


def _repack_clocks(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    if not config.repack:
        return 0
    rows = {"a": problem.m, "b": problem.n}
    elements = sum(rows[x] * problem.k * problem.batch for x in rows if repacks(config, problem, x))
    moved = 3 * problem.dtype.nbytes(elements)  # read, written and read again
    return _REPACK_CLOCKS + moved / (_MEMORY_BYTES_PER_CLOCK * device.sm_count)


def config_from_hint(hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The tile and splits of a hint, with warp tiles of at most 64 x 64; it may be invalid."""
    tile_k = max(1, (hint.tile_k or _HINTED_TILE_K) * problem.dtype.bits // 16)
    warps = (_warps(hint.tile_m), _warps(hint.tile_n))
    shape = (hint.tile_m, hint.tile_n, tile_k, *warps, hint.stages or _HINTED_STAGES)
    split_k = min(LEGAL_SPLITS, key=lambda split: abs(split - hint.split_k))
    configs = (dataclasses.replace(one, split_k=split_k) for one in _filled(problem, device, *shape))
    return _trimmed(min(configs, key=lambda one: clocks(one, problem, device)), problem)


def _warps(tile: int) -> int:
    """Warps along an axis of a tile: 64 elements each, or 32 if the tile is smaller than two of those."""
    return max(1, tile // (64 if tile >= 128 else 32))


def _filled(problem: GemmProblem, device: DeviceSpec, *shape: int) -> Iterator[Knobs]:
    """Configs of a shape without splits, for each way to load rows that are not aligned."""
    tile_m, tile_n, depth, warps_m, warps_n, stages = shape
    tile_k = tiling.trimmed_tile_k(depth * 16 // problem.dtype.bits, problem)
    narrow = any(problem.stride_alignment(operand) < ROW_ALIGNMENT for operand in ("a", "b"))
    for repack in (0, 1) if narrow else (0,):
        config = Knobs(
            tile_m=tile_m,
            tile_n=tile_n,
            warps_m=warps_m,
            warps_n=warps_n,
            tile_k=tile_k,
            stages=stages,
            fragment_load="direct" if problem.dtype is DType.FLOAT64 else "ldmatrix",
            accumulate=ACCUMULATE_OF[problem.accumulate],
            swizzle_size=8 if -(-problem.m // tile_m) >= 8 else 1,
            repack=repack,
        )
        config = dataclasses.replace(config, copy_bytes=_widest_copy(config, problem))
        ctas_per_sm = 2 if _fits_twice(config, problem, device) else 1
        yield dataclasses.replace(config, min_ctas_per_sm=ctas_per_sm)


def _widest_copy(c: Knobs, p: GemmProblem) -> int:
    """Bytes of the widest copies that suit: through the L1 if several CTAs load the same tile of A or B and
    nothing else of it."""
    shared = p.k <= c.tile_k and (p.m <= c.tile_m) != (p.n <= c.tile_n)
    return _THROUGH_L1 if shared and not c.repack else 16


def _trimmed(config: Knobs, problem: GemmProblem) -> Knobs:
    """The config with no more stages than its k tiles fill, as the rest would be filled with zeros, and for a
    single CTA with an epilogue that waits for no other warp."""
    if tiling.grid(config).tiles(problem) * config.split_k * problem.batch == 1:
        config = dataclasses.replace(config, epilogue="direct")
    k_tiles = tiling.tiles_per_split(config, problem)
    in_registers = any(copy_bytes(config, problem, x) < tiling.LEAST_ASYNC for x in ("a", "b"))
    if k_tiles == 1 and in_registers:
        return dataclasses.replace(config, stages=1, double_buffer=0)
    return dataclasses.replace(config, stages=min(config.stages, k_tiles + 1))


def _fits_twice(c: Knobs, p: GemmProblem, d: DeviceSpec) -> bool:
    """Whether an SM can hold two CTAs, so that one multiplies while the other waits or stores."""
    twice = dataclasses.replace(c, min_ctas_per_sm=2)
    return why_smem(twice, p, d) is None and why_registers(twice, p, d) is None


def _why_depth(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    few = Grid(128, 128).tiles(p) * p.batch < d.sm_count
    most = 256 if few and c.tile_m + c.tile_n <= 128 else 128
    if not 64 <= p.dtype.nbytes(c.tile_k) <= most:
        return (
            "rows of 64 and 128 bytes a stage, of a small tile and D also 256: others copy too little or "
            "cost stages"
        )
    return None


def _why_slow_loads(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.fragment_load == "direct" and p.dtype.size <= 4:
        return "an ldmatrix moves four times as much as a direct load"
    return None


def _why_copy_width(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.copy_bytes == _THROUGH_L1 != _widest_copy(c, p):
        return "copies of 8 bytes pay for a tile that all CTAs share, which stays in the L1"
    return None


def _why_odd_warps(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.warp_m > 64 or not 16 <= c.warp_n <= 64:
        return "warp tiles beyond 64 x 64 spill, and of fewer than 16 columns leave ldmatrix half idle"
    if c.warp_m * c.warp_n < min(1024, c.tile_m * c.tile_n // 4):
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


def _why_one_stage(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.stages == 1 and tiling.tiles_per_split(c, p) > 1:
        return "one stage loads each k tile after the products of the one before: it pays for a single k tile"
    return None


SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "tile_n", "tile_k"), _why_depth),
    Rule(("fragment_load",), _why_slow_loads),
    Rule(("copy_bytes", "tile_m", "tile_n", "tile_k", "repack"), _why_copy_width),
    Rule(("tile_m", "tile_n"), tiling.why_oversized),
    Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_odd_warps),
    Rule(("tile_m", "tile_n", "warps_m", "warps_n", "warps_k"), _why_few_warps),
    Rule(("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "warps_k", "repack"), _why_spills),
    Rule(("tile_m", "tile_n", "tile_k", "split_k"), tiling.why_split),
    Rule(("tile_k", "split_k", "stages"), _why_one_stage),
    Rule(("tile_m", "tile_n", "split_k", "raster", "swizzle_size"), tiling.why_raster),
)
