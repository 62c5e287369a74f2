"""The clocks that a launch of family ``wgmma_ws`` should take: the model that orders its first picks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kernels.common import cuda
from kernels.common.tile_hint import TileHint
from kernels.wgmma_ws.config import KNOBS, TMA_STORES, Knobs
from kernels.wgmma_ws.layout import (
    MULTIPLY_ADDS,
    SMALL,
    grid,
    kept_registers,
    row_alignment,
    running,
    single_wave,
    sum_registers,
    walk,
)
from kernels.wgmma_ws.search_rules import (
    enough_boxes,
    enough_stages,
    is_kept,
    why_cta_order,
    why_prefetch,
    why_reverse_k,
    why_same_sectors,
    why_stream_d,
)
from kernels.wgmma_ws.validity import why_sector_aligned_store
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

# The share of wgmma's peak that main loops reach; per SM and clock bytes from L2, from shared
# memory and from DRAM. Fitted to clocks that ncu read on an H200, those of parts and of clusters to times
# (benchmarks/lab/2026-11-23-hopper.md).
_REACHED = 0.975
_L2_BYTES = 64
_SMEM_BYTES = 128
_PART_BYTES = 18  # written and read again, of parts of k
_DRAM_BYTES = 20
_TURN_CYCLES = 1500  # first loads and turn-over of a tile,
_SUM_CYCLES = 20  # and storing one sum of each thread, where nothing hides them
_HIDDEN = 0.8  # share of both that ping-pong hides, of the latter that a store behind the next tile hides
_POWER_BYTES = 250  # that a block loads: their power costs a clock, whether or not it shares them
_UNSHARED = 0.1  # share of that power that is spent on a byte once for all of a cluster
_UNHIDDEN = 0.1  # share of the lesser of DRAM's time and the rest that does not overlap the greater
_LAUNCH_CYCLES = 3000
_PARTS_CYCLES = 2000  # of adding up parts, however small, and what
_LATE_CYCLES = 1500  # it starts later where the registers of several consumers leave the kernel after no room
_SHARES_CYCLES, _SHARES_BYTES = 3000, 30  # the same where every block adds up its share,
_TURNS_BYTES = 50  # and one of two consumers leaves its sums while the other multiplies


def cycles(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Clocks that a launch should take, for ranking only.

    The slowest of tensor cores, L2 and shared memory for a unit, times units of an SM, but at
    least the time that DRAM needs; after the cost model of DeepSeek's DeepGEMM.
    """
    depth = -(-problem.k // (k.split_k * k.cluster_k)) * problem.dtype.size
    extent, width = k.share
    multiplied = k.tile_m * k.tile_n * depth / 2 / (_REACHED * MULTIPLY_ADDS)
    loaded = (k.tile_m / k.cluster_n + k.tile_n / k.cluster_m) * depth / _L2_BYTES
    if row_alignment(problem) < 128:
        loaded *= 2  # a panel's row lies in two lines
    read = k.consumers * (extent + extent // 64 * width) * depth / _SMEM_BYTES
    if k.schedule == "pingpong":
        read /= k.consumers  # they read in turns
    turn = _TURN_CYCLES + _SUM_CYCLES * sum_registers(k, problem) + (1000 if k.cluster_k > 1 else 0)
    start = _LAUNCH_CYCLES + 100 * (k.cluster - 1)
    hidden = 0.0
    if k.schedule == "pingpong":
        hidden = _HIDDEN * turn
    elif kept_registers(k) and k.consumers > 1:
        hidden = _HIDDEN * _SUM_CYCLES * sum_registers(k, problem)
    blocks = grid(k, device)
    units = blocks.tiles(problem) * problem.batch * k.split_k
    waves = -(-units * k.cluster_k // (running(k.cluster, device) * k.cluster))
    operands = (problem.m + problem.n) * problem.k * problem.dtype.size * problem.batch
    asked = k.tile_m / k.cluster_n + k.tile_n / k.cluster_m
    power = ((1 - _UNSHARED) * (k.tile_m + k.tile_n) + _UNSHARED * asked) * depth / _POWER_BYTES
    busy = waves * (max(multiplied, loaded, read) + turn - hidden + power) + hidden
    streamed = operands / (_DRAM_BYTES * device.sm_count)
    return max(busy, streamed) + _UNHIDDEN * min(busy, streamed) + _adding_up(k, problem, device) + start


def _adding_up(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Clocks from the sums of parts to those of tiles."""
    if k.split_k == 1:
        return 0.0
    part = problem.m * problem.n * problem.batch * 8 / device.sm_count
    if k.reduction == "reduce_scatter":
        in_turns = k.schedule == "cooperative" and k.consumers == 2 and not k.promote
        return _SHARES_CYCLES + (k.split_k - 1) * part / (_TURNS_BYTES if in_turns else _SHARES_BYTES)
    return _PARTS_CYCLES + (_LATE_CYCLES if k.consumers > 1 else 0) + k.split_k * part / _PART_BYTES


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
    reductions = ("kernel", "reduce_scatter") if spread[-1] > 1 else ("last_cta",)
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
    raster, swizzle_size, snake = walk(problem, device, extent, cluster)
    # Parts of tiles travel by the L2, and where all run at once no later wave reads an operand again.
    passes = split_k > 1 and single_wave(problem, device, extent, cluster, split_k)
    knobs = Knobs(
        schedule=schedule, swap_ab=swap, tile_m=tile_m, tile_n=tile_n, consumers_m=consumers_m,
        consumers_n=consumers_n, tile_k=tile_k, cluster_m=cluster_m, cluster_n=cluster_n,
        cluster_k=cluster_k, epilogue=epilogue, store_stages=1, stages=0,
        promote=2 if problem.dtype in cuda.FLOAT8 else 0, split_k=split_k,
        reduction=reduction, raster=raster, swizzle_size=swizzle_size, snake=snake,
        prefetch=_PREFETCHED, l2_hints=_l2_hints(problem, device, passes=passes),
        cta_order="gpc" if _together(problem, reduction, cluster) else "free",
        reverse_k=1,
        sector_aligned_store=int(schedule == "pingpong"),  # there more boxes take no more time
    )  # fmt: skip
    for why, without in _WORTH:
        if why(knobs, problem, device):
            knobs = dataclasses.replace(knobs, **without)
    return _with_stages(knobs, problem, device)


# Where a reason speaks against what a candidate has, what it has instead.
_WORTH: tuple[tuple[Callable[[Knobs, GemmProblem, DeviceSpec], str | None], dict[str, Any]], ...] = (
    (why_stream_d, {"l2_hints": "normal"}),
    (why_cta_order, {"cta_order": "free"}),
    (why_reverse_k, {"reverse_k": 0}),
    (why_sector_aligned_store, {"sector_aligned_store": 0}),
    (why_same_sectors, {"sector_aligned_store": 0}),
    (why_prefetch, {"prefetch": 0}),
)


def _l2_hints(problem: GemmProblem, device: DeviceSpec, *, passes: bool) -> str:
    """What the L2 keeps of A, B and D; passes: operands of many rows only pass through it."""
    if is_kept(problem, device, problem.m):
        return "keep_a"
    if is_kept(problem, device, problem.n):
        return "keep_b"
    few_a, few_b = problem.m <= 2 * SMALL, problem.n <= 2 * SMALL
    once = ("a" if passes and not few_a else "") + ("b" if few_a or (passes and not few_b) else "")
    return f"stream_{once}" if once else "normal"


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
    worth = reduction == "reduce_scatter" or (reduction == "last_cta" and problem.flops >= _LONG_FLOPS)
    return worth and cluster > 1


_SPLITS = [int(value) for knob in KNOBS if knob.name == "split_k" for value in knob.values]

# Schedule, consumers along wgmma's M and along its N: which of them suit depends on the tile.
_CONSUMERS = (
    ("cooperative", 2, 1),
    ("cooperative", 3, 1),
    ("cooperative", 1, 2),
    ("cooperative", 1, 1),
    ("pingpong", 1, 1),
)


def alike(
    hint: TileHint, problem: GemmProblem, device: DeviceSpec, valid: Callable[[Knobs], bool]
) -> list[Knobs]:
    """The fastest by the model of either schedule and each number of consumers that follow the hint, or
    the first of those like it that any config can follow; with its own k of a stage where that is valid."""

    def rank(k: Knobs) -> tuple[bool, float]:
        return k.tile_k != hint.tile_k, cycles(k, problem, device)

    for told in hint.variants:
        best: dict[tuple[str, int], Knobs] = {}
        for k in sorted(filter(valid, _candidates(told, problem, device)), key=rank):
            best.setdefault((k.schedule, k.consumers), k)
        if best:
            return list(best.values())
    return []


def _candidates(hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> Iterator[Knobs]:
    swaps = (0, 1) if problem.m <= 2 * SMALL else (0,)
    deep = 256 // problem.dtype.size
    split_k = min(_SPLITS, key=lambda split: abs(split - hint.split_k))
    spread = (*(hint.cluster or (1, 1)), 1, split_k)
    for swap, (schedule, *consumers), tile_k in itertools.product(swaps, _CONSUMERS, (deep // 2, deep)):
        consumers_m, consumers_n = reversed(consumers) if swap else consumers
        shape = (swap, schedule, hint.tile_m, hint.tile_n, consumers_m, consumers_n)
        if hint.tile_m % consumers_m == 0 == hint.tile_n % consumers_n:
            yield from alike_but_stores(problem, device, shape, tile_k, spread)
