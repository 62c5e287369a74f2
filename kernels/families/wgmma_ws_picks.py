"""First picks of family ``wgmma_ws``: known shapes, and the rest as it usually does best."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kernels import cuda
from kernels.families.wgmma_ws_knobs import FETCH, TMA_STORES, Knobs
from kernels.families.wgmma_ws_rules import why_sectors
from kernels.families.wgmma_ws_search import enough_boxes, enough_stages, why_same_sectors
from kernels.families.wgmma_ws_traffic import (
    is_kept,
    why_beat,
    why_even_waves,
    why_hint_d,
    why_placement,
    why_prefetch,
    why_snake_k,
)
from kernels.families.wgmma_ws_walk import SMALL, single_wave, walk
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

# schedule, tile_m, tile_n, consumers_m, consumers_n: what CUTLASS and cuBLAS use, and widths between.
_SHAPES = (
    ("cooperative", 128, 256, 2, 1),
    ("cooperative", 256, 128, 2, 1),
    ("cooperative", 128, 224, 2, 1),
    ("cooperative", 128, 208, 2, 1),
    ("cooperative", 128, 192, 2, 1),
    ("cooperative", 128, 176, 2, 1),
    ("cooperative", 128, 160, 2, 1),
    ("cooperative", 192, 192, 3, 1),
    ("cooperative", 256, 208, 2, 1),
    ("cooperative", 256, 200, 2, 1),
    ("cooperative", 256, 192, 2, 1),
    ("cooperative", 256, 160, 2, 1),
    ("cooperative", 256, 144, 2, 1),
    ("cooperative", 256, 112, 2, 1),
    ("cooperative", 192, 160, 3, 1),
    ("cooperative", 192, 128, 3, 1),
    ("cooperative", 128, 128, 2, 1),
    ("cooperative", 128, 128, 1, 1),
    ("cooperative", 128, 120, 2, 1),
    ("cooperative", 128, 112, 2, 1),
    ("cooperative", 128, 112, 1, 1),
    ("cooperative", 128, 144, 1, 1),
    ("cooperative", 128, 96, 2, 1),
    ("cooperative", 128, 88, 2, 1),
    ("cooperative", 128, 72, 2, 1),
    ("cooperative", 128, 64, 2, 1),
    ("cooperative", 128, 64, 1, 1),
    ("cooperative", 64, 256, 1, 2),
    ("cooperative", 64, 128, 1, 2),
    ("cooperative", 64, 224, 1, 1),
    ("cooperative", 64, 192, 1, 1),
    ("cooperative", 64, 144, 1, 1),
    ("cooperative", 64, 128, 1, 1),
    ("cooperative", 64, 112, 1, 1),
    ("cooperative", 64, 96, 1, 1),
    ("cooperative", 64, 80, 1, 1),
    ("cooperative", 64, 64, 1, 1),
    ("cooperative", 64, 48, 1, 1),
    ("pingpong", 128, 208, 1, 1),
    ("pingpong", 128, 200, 1, 1),
    ("pingpong", 128, 192, 1, 1),
    ("pingpong", 128, 176, 1, 1),
    ("pingpong", 128, 168, 1, 1),
    ("pingpong", 128, 160, 1, 1),
    ("pingpong", 128, 144, 1, 1),
    ("pingpong", 128, 128, 1, 1),
    ("pingpong", 128, 112, 1, 1),
    ("pingpong", 128, 96, 1, 1),
    ("pingpong", 64, 256, 1, 1),
    ("pingpong", 64, 192, 1, 1),
    ("pingpong", 64, 128, 1, 1),
)
# tile_m, tile_n, consumers_n with D transposed.
_SWAPPED = (
    (16, 128, 2),
    (16, 128, 1),
    (16, 64, 1),
    (24, 128, 1),
    (24, 64, 1),
    (32, 128, 2),
    (64, 128, 2),
    (64, 256, 2),
    (32, 256, 2),
    (16, 256, 2),
    (64, 64, 1),
)

_PREFETCHED = 4  # k tiles, where any
_BEAT = 512  # clocks, where any
_LONG_FLOPS = 2**34
_ENOUGH_STAGES = 5  # of fewer none is given for more staged boxes
_CLUSTERS = (
    (1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 4, 1), (4, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (1, 1, 2),
)  # fmt: skip


def candidates(problem: GemmProblem, device: DeviceSpec) -> Iterator[Knobs]:
    """Shapes that do well elsewhere with every cluster and split that may suit; not all are valid."""
    shapes = [(0, *shape) for shape in _SHAPES]
    if problem.m <= 2 * SMALL:
        shapes += [(1, "cooperative", tile_m, tile_n, 1, n) for tile_m, tile_n, n in _SWAPPED]
    deep = 256 // problem.dtype.size
    # NOTE: the model rates both alike, and of equals the first is taken: where weights are read once, as much
    # of each row together as there is.
    depths = (deep, deep // 2) if problem.m <= 2 * SMALL and problem.k >= deep else (deep // 2,)
    for shape, tile_k, cluster, split in itertools.product(
        shapes, depths, _CLUSTERS, (1, 2, 3, 4, 6, 8, 12, 16)
    ):
        if shape[1] == "pingpong" and split > 1:
            continue
        yield from alike_but_stores(problem, device, shape, tile_k, (*cluster, split))


def alike_but_stores(
    problem: GemmProblem,
    device: DeviceSpec,
    shape: tuple[int, str, int, int, int, int],
    tile_k: int,
    spread: tuple[int, int, int, int],
) -> Iterator[Knobs]:
    """Configs of a shape (swap_ab, schedule, tile_m, tile_n, consumers_m, consumers_n) and a spread
    (cluster_m, cluster_n, cluster_k, split_k), D stored and parts added up in one way or several, the rest
    as it usually does best; not all are valid."""
    swap, _, _, tile_n, _, consumers_n = shape
    stores: tuple[str, ...] = ("direct",)
    if problem.out in (DType.FLOAT16, DType.BFLOAT16):
        if problem.stride_alignment("d") >= 16:
            stores = TMA_STORES
        elif swap or tile_n // consumers_n % 16 == 0:
            stores = ("stmatrix",)
    reductions = ("kernel", "shares") if spread[-1] > 1 else ("block",)
    for reduction, epilogue in itertools.product(reductions, stores):
        yield _candidate(problem, device, shape, tile_k, spread, reduction, epilogue)


def _candidate(
    problem: GemmProblem,
    device: DeviceSpec,
    shape: tuple[int, str, int, int, int, int],
    tile_k: int,
    spread: tuple[int, int, int, int],
    reduction: str,
    epilogue: str,
) -> Knobs:
    swap, schedule, tile_m, tile_n, consumers_m, consumers_n = shape
    cluster_m, cluster_n, cluster_k, split_k = spread
    cluster = cluster_m * cluster_n * cluster_k
    extent = (tile_m * cluster_m, tile_n * cluster_n)
    raster, group, snake = walk(problem, device, extent, cluster)
    # Parts of tiles travel by the L2, and where all run at once no later wave reads an operand again.
    passes = split_k > 1 and single_wave(problem, device, extent, cluster, split_k)
    knobs = Knobs(
        schedule=schedule, swap_ab=swap, tile_m=tile_m, tile_n=tile_n, consumers_m=consumers_m,
        consumers_n=consumers_n, tile_k=tile_k, cluster_m=cluster_m, cluster_n=cluster_n,
        cluster_k=cluster_k, epilogue=epilogue, store_stages=1, stages=0,
        in_flight=1, promote=2 if problem.dtype in cuda.FLOAT8 else 0, split_k=split_k,
        reduction=reduction, stream_k=0, raster=raster, group=group, snake=snake,
        l2_promotion=FETCH, prefetch=_PREFETCHED, **_hints(problem, device, passes=passes),
        placement="gpc" if _together(problem, reduction, cluster) else "free",
        snake_k=1, even_waves=1, beat=_BEAT if split_k == 1 else 0,  # no gain was seen with shares
        whole_sectors=int(schedule == "pingpong"),  # there more boxes take no more time
    )  # fmt: skip
    for why, without in _WORTH:
        if why(knobs, problem, device):
            knobs = dataclasses.replace(knobs, **without)
    return _with_stages(knobs, problem, device)


# Where a reason speaks against what a candidate has, what it has instead.
_WORTH: tuple[tuple[Callable[[Knobs, GemmProblem, DeviceSpec], str | None], dict[str, Any]], ...] = (
    (why_hint_d, {"hint_d": "normal"}),
    (why_placement, {"placement": "free"}),
    (why_snake_k, {"snake_k": 0}),
    (why_beat, {"beat": 0}),
    (why_even_waves, {"even_waves": 0}),
    (why_sectors, {"whole_sectors": 0}),
    (why_same_sectors, {"whole_sectors": 0}),
    (why_prefetch, {"prefetch": 0}),
)


def _hints(problem: GemmProblem, device: DeviceSpec, *, passes: bool) -> dict[str, str]:
    """How long the L2 keeps A, B and D; passes: operands of many rows only pass through it."""
    keep_a = is_kept(problem, device, problem.m)
    keep_b = not keep_a and is_kept(problem, device, problem.n)
    few_a, few_b = problem.m <= 2 * SMALL, problem.n <= 2 * SMALL
    once_a, once_b = passes and not few_a, few_a or (passes and not few_b)
    return {
        "hint_a": "evict_last" if keep_a else "evict_first" if once_a else "normal",
        "hint_b": "evict_last" if keep_b else "evict_first" if once_b else "normal",
        "hint_d": "evict_first" if keep_a or keep_b else "normal",
    }


def _with_stages(knobs: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """As many stages as fit and can be used, and the staged boxes that overlap if the stages stay enough."""
    knobs.stages = most = enough_stages(knobs, problem, device)
    while knobs.epilogue != "direct" and knobs.store_stages < enough_boxes(knobs):
        roomy = dataclasses.replace(knobs, store_stages=2 * knobs.store_stages)
        roomy.stages = enough_stages(roomy, problem, device)
        if roomy.stages < min(most, _ENOUGH_STAGES):
            break
        knobs = roomy
    return knobs


def _together(problem: GemmProblem, reduction: str, cluster: int) -> bool:
    """Whether operands shared in a GPC are worth more than an early start; a kernel that adds up parts needs
    its early start, and blocks without a cluster have no order."""
    worth = reduction == "shares" or (reduction == "block" and problem.flops >= _LONG_FLOPS)
    return worth and cluster > 1
