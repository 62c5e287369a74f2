"""Cost model of family ``wgmma_ws``, and the candidates for its heuristic configs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kernels.base.knobs import knobs_of
from kernels.base.tile_hint import TileHint
from kernels.common import cuda
from kernels.wgmma_ws.config import TMA_STORES, Knobs
from kernels.wgmma_ws.layout import (
    MULTIPLY_ADDS,
    SMALL,
    accumulator_registers,
    clusters,
    clusters_at_once,
    grid,
    k_tiles,
    pending_registers,
    raster_order,
    row_alignment,
    single_wave,
)
from kernels.wgmma_ws.search_rules import (
    fewer_stages,
    l2_keeps,
    partitions_pay,
    useful_stages,
    useful_store_stages,
    why_cta_order,
    why_prefetch,
    why_reverse_k,
    why_stream_d,
    why_streamed,
    why_unaligned_anyway,
)
from kernels.wgmma_ws.validity import why_sector_aligned_store
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

# Constants of the cost model, fitted to cycle counts of ncu on an H200, those of split-K and clusters to
# times (benchmarks/lab/2026-11-23-hopper.md). Bytes are per SM and clock.
_REACHED = 0.975  # fraction of the peak of wgmma that main loops reach
_L2_BYTES = 64
_SMEM_BYTES = 128
_PARTIAL_BYTES = 18  # of the partials of split-K, written and read again
_DRAM_BYTES = 20
_DRAM_REACHED = 1.09  # of the bandwidth for each clock at the highest one; main loops run at lower ones
# Cost of a request of the larger operand in a single wave, relative to one of the other: of a CTA in a
# cluster, and of one of two CTAs without clusters that follow each other
# (benchmarks/lab/2026-11-26-single-wave.md).
_FROM_DRAM, _SHARED = 2.0, 0.7
# Cost of a row that lies outside A or B relative to one inside, and fixed cost of clusters of two CTAs that
# share loads (benchmarks/lab/2026-11-30-bytes-in-flight.md).
_OUTSIDE, _PAIR_CYCLES = 3.5, 2000
_TURNAROUND_CYCLES = 1500  # prologue and epilogue of a tile, without overlap
_STORE_CYCLES = 20  # store of one accumulator register, without overlap
# Fraction of turnaround and store that ping-pong overlaps, of the store with epilogue=overlapped.
_HIDDEN = 0.8
_POWER_BYTES = 250  # bytes whose load into a CTA takes the power of one clock, by multicast or not
# Power does not limit the clock of shorter launches (20 us). Few rows or columns wait for memory: their
# constants were fitted with power.
_LONG_FLOPS, _FEW = 2**34, 4 * SMALL
_UNSHARED = 0.1  # fraction of that power that a multicast spends once per cluster
_UNHIDDEN = 0.1  # fraction of the shorter of DRAM time and busy time that the longer does not hide
_LAUNCH_CYCLES = 3000
_SEVERAL_CONSUMERS_CYCLES = (
    1500  # of a launch, as measured; not of short ones with ping-pong; why is not known
)
# reduction=kernel: fixed cost, and the delay of its start if several consumers leave no registers for it.
_REDUCE_CYCLES, _LATE_REDUCE_CYCLES = 2000, 1500
# reduction=reduce_scatter: fixed cost, and bytes per clock without and with staggered consumers.
_SCATTER_CYCLES, _SCATTER_BYTES, _STAGGERED_BYTES = 3000, 30, 50


class CostModel:
    """Estimated clocks of configs of one problem on a device, for ranking only."""

    def __init__(self, problem: GemmProblem, device: DeviceSpec) -> None:
        self._problem, self._device = problem, device
        self._is_short = problem.flops <= _LONG_FLOPS and min(problem.m, problem.n) > _FEW
        self._crossing = 2 if row_alignment(problem) < 128 else 1  # cache lines that a row of a tile crosses
        operands = (problem.m + problem.n) * problem.k * problem.dtype.size * problem.batch
        self._streamed = operands / dram_bytes(device)

    def cycles(self, k: Knobs) -> float:
        """Estimated clocks of a launch.

        Takes the slowest of tensor cores, L2 and shared memory for a work tile, times the work tiles of an
        SM, but at least the time that DRAM needs, after the cost model of DeepSeek's DeepGEMM.
        """
        problem, device = self._problem, self._device
        depth = -(-problem.k // (k.split_k * k.cluster_k)) * problem.dtype.size
        extent, width = k.warpgroup_tile
        multiplied = k.tile_m * k.tile_n * depth / 2 / (_REACHED * MULTIPLY_ADDS)
        loaded = self._loaded(k) * self._crossing * depth / _L2_BYTES
        read = k.consumers * (extent + extent // 64 * width) * depth / _SMEM_BYTES
        if k.schedule == "pingpong":
            read /= k.consumers  # they alternate
        store = _STORE_CYCLES * accumulator_registers(k, problem)
        turnaround = _TURNAROUND_CYCLES + store + (1000 if k.cluster_k > 1 else 0)
        start = _LAUNCH_CYCLES + (200 if k.split_k == 1 else 100) * (k.cluster - 1)
        start += _PAIR_CYCLES if k.cluster == 2 and k.cluster_k == 1 else 0
        if k.consumers > 1 and not (self._is_short and k.schedule == "pingpong"):
            start += _SEVERAL_CONSUMERS_CYCLES
        hidden = 0.0
        if k.schedule == "pingpong":
            hidden = _HIDDEN * turnaround
        elif pending_registers(k) and k.consumers > 1:
            hidden = _HIDDEN * store
        work_tiles = grid(k, device).tiles(problem) * problem.batch * k.split_k
        waves = -(-work_tiles * k.cluster_k // (clusters_at_once(k.cluster, device) * k.cluster))
        power = 0.0
        if not self._is_short:
            requested = k.tile_m / k.cluster_n + k.tile_n / k.cluster_m
            power = ((1 - _UNSHARED) * (k.tile_m + k.tile_n) + _UNSHARED * requested) * depth / _POWER_BYTES
        busy = waves * (max(multiplied, loaded, read) + turnaround - hidden + power) + hidden
        main = max(busy, self._streamed) + _UNHIDDEN * min(busy, self._streamed)
        return main + _reduction_cycles(k, problem, device) + start

    def _loaded(self, k: Knobs) -> float:
        """Rows of A and B that a CTA requests from the L2 for each k, on average.

        Those outside A and B, which TMA fills with zeros, count as more. In a single wave all of the larger
        operand comes from DRAM at once, so its requests are slower. CTAs that follow each other in the raster
        order share them, unless they are in clusters, which share by multicast alone.
        """
        problem, device = self._problem, self._device
        requested = k.tile_m / k.cluster_n, k.tile_n / k.cluster_m
        rows, columns = clusters(problem, (k.tile_m, k.tile_n))
        outside = (_OUTSIDE - 1) * (k.tile_m - problem.m / rows + k.tile_n - problem.n / columns)
        extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
        if k.split_k > 1 or min(rows, columns) == 1 or not single_wave(problem, device, extent, k.cluster):
            return sum(requested) + outside
        larger, other = reversed(requested) if cuda.weights(problem) == "b" else requested
        return other + larger * (_SHARED if k.cluster == 1 else _FROM_DRAM) + outside


def dram_bytes(device: DeviceSpec) -> float:
    """Bytes that DRAM gives all SMs in a clock of main loops; an H200's if the bandwidth is unknown."""
    if not (device.memory_gbps and device.clock_mhz):
        return _DRAM_BYTES * device.sm_count
    return _DRAM_REACHED * device.memory_gbps * 1e3 / device.clock_mhz


def _reduction_cycles(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Estimated clocks to reduce the partials of split-K."""
    if k.split_k == 1:
        return 0.0
    partials = problem.m * problem.n * problem.batch * 8 / device.sm_count
    if k.reduction == "reduce_scatter":
        staggered = k.schedule == "cooperative" and k.consumers == 2 and not k.promote
        bandwidth = _STAGGERED_BYTES if staggered else _SCATTER_BYTES
        return _SCATTER_CYCLES + (k.split_k - 1) * partials / bandwidth
    late = _LATE_REDUCE_CYCLES if k.consumers > 1 else 0
    return _REDUCE_CYCLES + late + k.split_k * partials / _PARTIAL_BYTES


Shape = tuple[int, str, int, int, int, int]  # swap_ab, schedule, tile_m, tile_n, consumers_m, consumers_n

# schedule, tile_m, tile_n, consumers_m, consumers_n: those of CUTLASS and cuBLAS, and widths in between.
_SHAPES = (
    ("cooperative", 128, 256, 2, 1), ("cooperative", 256, 128, 2, 1), ("cooperative", 128, 224, 2, 1),
    ("cooperative", 128, 208, 2, 1), ("cooperative", 128, 192, 2, 1), ("cooperative", 128, 176, 2, 1),
    ("cooperative", 128, 160, 2, 1), ("cooperative", 192, 192, 3, 1), ("cooperative", 256, 208, 2, 1),
    ("cooperative", 256, 200, 2, 1), ("cooperative", 256, 192, 2, 1), ("cooperative", 256, 160, 2, 1),
    ("cooperative", 256, 144, 2, 1), ("cooperative", 256, 112, 2, 1), ("cooperative", 192, 160, 3, 1),
    ("cooperative", 192, 128, 3, 1), ("cooperative", 128, 128, 2, 1), ("cooperative", 128, 128, 1, 1),
    ("cooperative", 128, 120, 2, 1), ("cooperative", 128, 112, 2, 1), ("cooperative", 128, 112, 1, 1),
    ("cooperative", 128, 144, 1, 1), ("cooperative", 128, 96, 2, 1), ("cooperative", 128, 88, 2, 1),
    ("cooperative", 128, 72, 2, 1), ("cooperative", 128, 64, 2, 1), ("cooperative", 128, 64, 1, 1),
    ("cooperative", 64, 256, 1, 2), ("cooperative", 64, 128, 1, 2), ("cooperative", 64, 224, 1, 1),
    ("cooperative", 64, 192, 1, 1), ("cooperative", 64, 144, 1, 1), ("cooperative", 64, 128, 1, 1),
    ("cooperative", 64, 112, 1, 1), ("cooperative", 64, 96, 1, 1), ("cooperative", 64, 80, 1, 1),
    ("cooperative", 64, 64, 1, 1), ("cooperative", 64, 48, 1, 1),
    ("pingpong", 128, 208, 1, 1), ("pingpong", 128, 200, 1, 1), ("pingpong", 128, 192, 1, 1),
    ("pingpong", 128, 176, 1, 1), ("pingpong", 128, 168, 1, 1), ("pingpong", 128, 160, 1, 1),
    ("pingpong", 128, 144, 1, 1), ("pingpong", 128, 128, 1, 1), ("pingpong", 128, 112, 1, 1),
    ("pingpong", 128, 96, 1, 1), ("pingpong", 64, 256, 1, 1), ("pingpong", 64, 192, 1, 1),
    ("pingpong", 64, 128, 1, 1),
)  # fmt: skip
# tile_m, tile_n, consumers_n with swap_ab.
_SWAPPED = (
    (16, 128, 2), (16, 128, 1), (16, 64, 1), (24, 128, 1), (24, 64, 1), (32, 128, 2),
    (64, 128, 2), (64, 256, 2), (32, 256, 2), (16, 256, 2), (64, 64, 1),
)  # fmt: skip

_SWAPPED_ROWS = 8 * SMALL  # of D, up to which a hint is followed with swap_ab
_ROW = 128  # bytes of a row of A and B in a stage; twice that if so many stages of them fit
_DEEP_STAGES = 6
# All stages that fit pay where the CTAs fill the SMs, or each stage is loaded that often.
_FILLED, _REFILLS = 0.9, 4
_PREFETCHED = 4  # k tiles, if any
_READS = 3  # bytes of A and B for each of D, from which on A and B are evicted first in a single wave
_ENOUGH_STAGES = 5  # that more store stages leave, or half of a short k; few rows give up none
_CANDIDATE_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_CLUSTERS = (
    (1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 4, 1), (4, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (1, 1, 2),
)  # fmt: skip


def rated_candidates(problem: GemmProblem, device: DeviceSpec) -> Iterator[tuple[float, Knobs]]:
    """Configs of every known shape, cluster and split_k with their estimated clocks.

    :func:`with_depth` sets knobs that the cost model does not read. Not all are valid.
    """
    model = CostModel(problem, device)
    shapes = [(0, *shape) for shape in _SHAPES]
    if problem.m <= 2 * SMALL:
        shapes += [(1, "cooperative", tile_m, tile_n, 1, n) for tile_m, tile_n, n in _swapped(problem)]
    shapes = list(dict.fromkeys([*shapes, *_filling_shapes(problem, device)]))
    tile_k = _ROW // problem.dtype.size
    for shape, cluster, split in itertools.product(shapes, _CLUSTERS, _CANDIDATE_SPLITS):
        if shape[1] == "pingpong" and split > 1:
            continue
        if partitions_pay(problem, device, shape[2:4], tile_k, split * cluster[2]):
            yield from ((model.cycles(k), k) for k in variants(problem, shape, tile_k, (*cluster, split)))


def _swapped(problem: GemmProblem) -> Iterator[tuple[int, int, int]]:
    """tile_m, tile_n and consumers_n of candidates with swap_ab: known ones, and tiles of all rows of D."""
    yield from _SWAPPED
    rows = -(-problem.m // 16) * 16
    if SMALL < rows < 2 * SMALL:
        yield from ((rows, 64, 1), (rows, 128, 1), (rows, 128, 2))


def _filling_shapes(problem: GemmProblem, device: DeviceSpec) -> Iterator[Shape]:
    """Shapes that cut an axis of D evenly, into as many tiles as the SMs can compute at once."""
    integers = problem.dtype in (DType.INT8, DType.UINT8)
    for extent, consumers in ((64, 1), (128, 1), (256, 2)):
        for swap, along, across in ((0, problem.m, problem.n), (1, problem.n, problem.m)):
            tiles = max(1, device.sm_count // (-(-along // extent) * problem.batch))
            contiguous = problem.layout.a_transposed if swap else not problem.layout.b_transposed
            step = 64 if contiguous else 16 if integers else 8
            width = -(-across // (tiles * step)) * step
            if width < 128 or (width == 128 and not swap):
                tile = (width, extent, 1, consumers) if swap else (extent, width, consumers, 1)
                yield swap, "cooperative", *tile


def variants(
    problem: GemmProblem,
    shape: Shape,
    tile_k: int,
    spread: tuple[int, int, int, int],
) -> Iterator[Knobs]:
    """Candidates of a shape with each epilogue and reduction that may suit.

    Args:
        spread: cluster_m, cluster_n, cluster_k, split_k.
    """
    swap, schedule, tile_m, tile_n, consumers_m, consumers_n = shape
    cluster_m, cluster_n, cluster_k, split_k = spread
    stores: tuple[str, ...] = ("direct",)
    if problem.out in (DType.FLOAT16, DType.BFLOAT16):
        if problem.stride_alignment("d") >= 16:
            stores = ("tma",) if problem.has_c else TMA_STORES
        elif swap or tile_n // consumers_n % 16 == 0:
            stores = ("stmatrix",)
    reductions = ("kernel", "reduce_scatter") if split_k > 1 else ("none",)
    for reduction, epilogue in itertools.product(reductions, stores):
        yield Knobs(
            schedule=schedule, swap_ab=swap, tile_m=tile_m, tile_n=tile_n, consumers_m=consumers_m,
            consumers_n=consumers_n, tile_k=tile_k, cluster_m=cluster_m, cluster_n=cluster_n,
            cluster_k=cluster_k, epilogue=epilogue, store_stages=1, stages=0,
            promote=2 if problem.dtype in cuda.FLOAT8 else 0, split_k=split_k, reduction=reduction,
        )  # fmt: skip


def with_depth(candidate: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """A candidate with all its knobs, for few rows in stages of longer rows if enough of them fit."""
    if problem.m <= 2 * SMALL:
        deep = dataclasses.replace(candidate, tile_k=2 * candidate.tile_k)
        whole = with_derived_knobs(deep, problem, device)
        if whole.stages >= _DEEP_STAGES:
            return whole
    return with_derived_knobs(candidate, problem, device)


def with_derived_knobs(candidate: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """A candidate with the raster order, L2 hints, prefetches and stages that suit it."""
    k = candidate
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    raster, swizzle_size, snake = raster_order(problem, device, extent, k.cluster)
    # In a single wave no later wave reads an operand again; partials and a large D go through the L2.
    written = problem.m * problem.n * problem.out.size * problem.batch
    reads = problem.n > 2 * SMALL and problem.operand_bytes >= _READS * written
    streams = (k.split_k > 1 or reads) and single_wave(problem, device, extent, k.cluster, k.split_k)
    prefetched = not SMALL < problem.m <= 2 * SMALL or problem.operand_bytes <= 2 * device.l2_bytes
    # To share loads in a GPC gains more than an early launch, which a kernel that reduces partials needs.
    shares = k.reduction == "reduce_scatter" or (k.reduction == "none" and problem.flops >= _LONG_FLOPS)
    knobs = dataclasses.replace(
        candidate, raster=raster, swizzle_size=swizzle_size, snake=snake,
        prefetch=_PREFETCHED if prefetched else 0, l2_hints=_l2_hints(problem, device, streams=streams),
        cta_order="gpc" if shares and k.cluster > 1 else "free",
        reverse_k=1,
        sector_aligned_store=int(k.schedule == "pingpong"),  # ping-pong overlaps the extra subtiles
    )  # fmt: skip
    for why, without in _FALLBACKS:
        if why(knobs, problem, device):
            knobs = dataclasses.replace(knobs, **without)
    return _with_stages(knobs, problem, device)


# The value that a knob of a candidate takes if a rule refuses the value it has.
_FALLBACKS: tuple[tuple[Callable[[Knobs, GemmProblem, DeviceSpec], str | None], dict[str, Any]], ...] = (
    (why_stream_d, {"l2_hints": "normal"}),
    (why_streamed, {"l2_hints": "normal"}),
    (why_cta_order, {"cta_order": "free"}),
    (why_reverse_k, {"reverse_k": 0}),
    (why_sector_aligned_store, {"sector_aligned_store": 0}),
    (why_unaligned_anyway, {"sector_aligned_store": 0}),
    (why_prefetch, {"prefetch": 0}),
)


def _l2_hints(problem: GemmProblem, device: DeviceSpec, *, streams: bool) -> str:
    """The value of l2_hints for a candidate.

    Args:
        streams: no operand of many rows is read twice.
    """
    if l2_keeps(problem, device, problem.m):
        return "keep_a"
    if l2_keeps(problem, device, problem.n):
        return "keep_b"
    few_a, few_b = problem.m <= 2 * SMALL, problem.n <= 2 * SMALL
    once = ("a" if streams and not few_a else "") + ("b" if few_a or (streams and not few_b) else "")
    return f"stream_{once}" if once else "normal"


def _with_stages(knobs: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The config with as many stages as are useful, with fewer where few CTAs have a short k, and with more
    store stages while enough stages remain."""
    ctas = grid(knobs, device).tiles(problem) * problem.batch * knobs.split_k * knobs.cluster_k
    loads, most = k_tiles(knobs, problem), useful_stages(knobs, problem, device)
    fills = ctas >= _FILLED * device.sm_count or loads >= _REFILLS * most
    fitting = useful_stages if fills else fewer_stages
    knobs.stages = enough = fitting(knobs, problem, device)
    if problem.m > 2 * SMALL:
        enough = min(enough, _ENOUGH_STAGES, max(3, loads // 2))
    while knobs.epilogue != "direct" and knobs.store_stages < useful_store_stages(knobs, problem):
        roomy = dataclasses.replace(knobs, store_stages=2 * knobs.store_stages)
        roomy.stages = fitting(roomy, problem, device)
        if roomy.stages < enough:
            break
        knobs = roomy
    return knobs


_SPLITS = [int(value) for knob in knobs_of(Knobs) if knob.name == "split_k" for value in knob.values]

# (schedule, consumers along the M of wgmma, consumers along its N); the tile decides which are valid.
_CONSUMERS = (
    ("cooperative", 2, 1),
    ("cooperative", 3, 1),
    ("cooperative", 1, 2),
    ("cooperative", 1, 1),
    ("pingpong", 1, 1),
)


def following_hint(
    hint: TileHint, problem: GemmProblem, device: DeviceSpec, valid: Callable[[Knobs], bool]
) -> list[Knobs]:
    """The fastest valid config, by the model, that follows a hint, for each schedule and consumer count.

    If no config follows the hint itself, they follow the first of its variants that any config follows. They
    have the tile_k of the hint if that is valid.
    """

    model = CostModel(problem, device)

    def rank(k: Knobs) -> tuple[bool, float]:
        return k.tile_k != hint.tile_k, model.cycles(k)

    for variant in hint.variants:
        best: dict[tuple[str, int], Knobs] = {}
        for k in sorted(filter(valid, _variants_of_hint(variant, problem, device)), key=rank):
            best.setdefault((k.schedule, k.consumers), k)
        if best:
            return list(best.values())
    return []


def _variants_of_hint(hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> Iterator[Knobs]:
    swaps = (0, 1) if problem.m <= _SWAPPED_ROWS else (0,)
    tile_k = _ROW // problem.dtype.size
    split_k = min(_SPLITS, key=lambda split: abs(split - hint.split_k))
    spread = (*(hint.cluster or (1, 1)), 1, split_k)
    for swap, (schedule, *consumers), depth in itertools.product(swaps, _CONSUMERS, (tile_k, 2 * tile_k)):
        consumers_m, consumers_n = reversed(consumers) if swap else consumers
        shape = (swap, schedule, hint.tile_m, hint.tile_n, consumers_m, consumers_n)
        if hint.tile_m % consumers_m == 0 == hint.tile_n % consumers_n:
            for candidate in variants(problem, shape, depth, spread):
                yield with_derived_knobs(candidate, problem, device)
