"""Search rules of family ``wgmma_ws``: the reasons why a valid config is not worth a trial.

First the rules about memory traffic (raster order, L2 hints, prefetch, CTA order), then those about tiles,
pipeline stages, stores and split-K.
"""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.wgmma_ws.config import MOST_STAGES, TMA_STORES, Knobs
from kernels.wgmma_ws.layout import (
    SMALL,
    clusters,
    clusters_at_once,
    fixed_bytes,
    k_tiles,
    l2_keeps_bytes,
    loads_c,
    single_wave,
    stage_bytes,
    staging_bytes,
    subtile_n,
    subtiles,
)
from kernels.wgmma_ws.validity import STAGES, STAGING, SUBTILE
from tilewright.artifact import Grid
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

_SHORT_FLOPS = 2**33  # 10 to 20 us in 16 bits
_FEWER_BYTES, _EXCHANGE_BYTES = 1536, 640  # of a row, in all stages


def _why_raster(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    rows, columns = clusters(p, extent)
    if min(rows, columns) == 1 and (k.raster, k.swizzle_size) != ("m", 1):
        return "a single row or column of clusters has one raster order: raster=m, swizzle_size=1"
    along = columns if k.raster == "n" else rows
    if k.swizzle_size > 1 and k.swizzle_size >= 2 * along:
        return "swizzle_size exceeds the grid of clusters"
    turns = k.swizzle_size > 1 and along > k.swizzle_size
    if k.snake != turns:
        return "snake=1 costs nothing here" if turns else "snake=1 changes nothing here"
    if k.raster == "n" and single_wave(p, d, extent, k.cluster):
        return "in a single wave raster=m has every order that matters"
    return None


def why_streamed(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    # NOTE: all tiles of a single wave read at once. To evict one operand alone gained nothing unless k is
    # split, both up to 4 % (benchmarks/lab/2026-11-29-short-launches.md).
    if single_wave(p, d, extent, k.cluster, k.split_k) and (k.split_k > 1 or k.l2_hints == "stream_ab"):
        return None
    if k.l2_hints in ("stream_a", "stream_ab") and p.n > 4 * k.tile_n:
        return "later columns of tiles read A again: it must not be evicted first"
    if k.l2_hints in ("stream_b", "stream_ab") and p.m > 4 * k.tile_m:
        return "later rows of tiles read B again: it must not be evicted first"
    return None


def l2_keeps(p: GemmProblem, d: DeviceSpec, extent: int) -> bool:
    """Whether an operand of ``extent`` rows fits the L2 from wave to wave, and writing D would evict it."""
    return extent * p.k * p.dtype.size * p.batch <= l2_keeps_bytes(d) and _d_floods_l2(p, d)


def _why_kept(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    kept = {"keep_a": p.m, "keep_b": p.n}.get(k.l2_hints)
    if kept is not None and not l2_keeps(p, d, kept):
        return "l2_hints keeps an operand only where it fits the L2 and writing D would evict it"
    return None


def why_stream_d(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    stored = k.epilogue in TMA_STORES and k.reduction != "kernel"
    if k.l2_hints == "stream_d" and not (stored and _d_floods_l2(p, d)):
        return "l2_hints=stream_d needs a large D that TMA stores"
    return None


def _d_floods_l2(p: GemmProblem, d: DeviceSpec) -> bool:
    return p.m * p.n * p.out.size * p.batch >= d.l2_bytes // 4


def why_prefetch(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.prefetch and (min(p.m, p.n) > 2 * SMALL or p.operand_bytes < d.l2_bytes // 4):
        return "operands that are small or that many tiles read are in the L2 anyway"
    if k.prefetch and p.stride_alignment(cuda.weights(p)) < 16:
        return "operands that are repacked are in the L2 already"
    return None


def why_cta_order(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cta_order == "gpc" and (min(p.m, p.n) <= 2 * SMALL or p.flops < _SHORT_FLOPS):
        return "a short kernel gains more from an early launch than from sharing loads within a GPC"
    return None


def why_reverse_k(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if not k.reverse_k:
        return None
    if k.split_k > 1:
        return "successive work tiles of a CTA are different splits of k"
    rows, columns = clusters(p, (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n))
    if rows * columns <= clusters_at_once(k.cluster, d):
        return "a CTA that computes one tile of a matrix reads k only once"
    if min(p.m, p.n) * p.k * p.dtype.size <= l2_keeps_bytes(d):
        return "an operand that fits the L2 is hit in either direction of k"
    return None


TRAFFIC_RULES: tuple[Rule[Knobs], ...] = (
    Rule(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "raster", "swizzle_size", "snake"),
        _why_raster,
    ),
    Rule(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "l2_hints"),
        why_streamed,
    ),
    Rule(("l2_hints",), _why_kept),
    Rule(("epilogue", "reduction", "l2_hints"), why_stream_d),
    Rule(("prefetch",), why_prefetch),
    Rule(("cta_order",), why_cta_order),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "reverse_k"), why_reverse_k),
)


_SECTOR = 32  # bytes of the L2
MOST_SUBTILES = 16  # of an overlapped epilogue: each unrolls a copy of the main loop


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    least_m, least_n = 16 if k.swap_ab else 64, 16 if p.layout.b_transposed else 64
    for extent, tile, least in ((p.m, k.tile_m, least_m), (p.n, k.tile_n, least_n)):
        if tile > least and tile >= 2 * extent:
            return "more than half of the tile would lie outside D"
    return None


def _why_swap(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if not k.swap_ab:
        return None
    if k.tile_n % 64:
        return "with swap_ab tile_n is the M of wgmma: a multiple of 64"
    if k.tile_m > 2 * SMALL or (k.tile_m > SMALL and k.tile_m % 64 == 0):
        return "swap_ab pays only for narrow tiles that wgmma has in no other way"
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    if p.m > 2 * SMALL and not single_wave(p, d, extent, k.cluster, k.split_k):
        return "swap_ab pays only for few rows of D or in a single wave"
    return None


def _why_small(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    whole = k.tile_m >= p.m or k.tile_n >= p.n
    if not whole and k.tile_m * k.tile_n < 64 * 96 and Grid(128, 128).tiles(p) * p.batch >= d.sm_count:
        return "larger tiles fill all SMs"
    return None


def useful_stages(k: Knobs, p: GemmProblem, d: DeviceSpec) -> int:
    """The most stages that fit shared memory and have a k tile to hold."""
    return min(_most_stages(k, p, d), max(3, k_tiles(k, p)))


def _most_stages(k: Knobs, p: GemmProblem, d: DeviceSpec, spared: int = 0) -> int:
    """The most stages that fit with ``spared`` bytes left free."""
    return min((d.smem_per_block - fixed_bytes(k, p) - spared) // stage_bytes(k, p), MOST_STAGES)


def fewer_stages(k: Knobs, p: GemmProblem, d: DeviceSpec) -> int:
    """The stages of a narrow tile, of which many fit, that hold no more than 1536 bytes of each row.

    All that fit are up to 8 % faster where weights come from DRAM, and up to 3 % slower where few CTAs have a
    short k (benchmarks/lab/2026-11-30-bytes-in-flight.md).
    """
    return min(useful_stages(k, p, d), _FEWER_BYTES // (k.tile_k * p.dtype.size))


def _why_stages(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    useful = {useful_stages(k, p, d), fewer_stages(k, p, d)}
    if k.stages < 3:
        return "two stages do not hide the latency of TMA"
    return None if k.stages in useful else f"{' or '.join(map(str, sorted(useful)))} stages are useful"


def _why_exchange(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    # NOTE: they are 5 % and more behind the best (benchmarks/lab/2026-11-30-bytes-in-flight.md).
    if k.cluster_k > 1 and k.stages * k.tile_k * p.dtype.size < _EXCHANGE_BYTES:
        return "exchanging accumulators in a cluster leaves too few stages: use a smaller tile, or split_k"
    return None


def useful_store_stages(k: Knobs, p: GemmProblem) -> int:
    """Epilogue subtiles to stage at a time, a power of two: more if sector alignment makes them narrow, or if
    C comes into them while the tile is multiplied."""
    most = min(4 if k.sector_aligned_store or loads_c(k, p) else 2, subtiles(k))
    return max((count for count in (2, 4) if count <= most), default=1)


def _why_store(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.epilogue == "direct" and p.out in (DType.FLOAT16, DType.BFLOAT16):
        return "a staged epilogue stores wider rows than epilogue=direct"
    if k.epilogue != "direct":
        enough = useful_store_stages(k, p)
        if k.store_stages > enough:
            return f"{enough} store stages are enough for {subtiles(k)} subtiles"
        more = staging_bytes(k)  # as much as there is already
        if k.store_stages < enough and _most_stages(k, p, d, more) == _most_stages(k, p, d):
            return "twice as many store stages overlap more and cost no pipeline stage"
    if k.epilogue == "stmatrix" and p.stride_alignment("d") >= 16:
        return "TMA stores the same subtiles with fewer instructions"
    return None


def why_unaligned_anyway(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.sector_aligned_store:
        return None
    if p.n * p.out.size % _SECTOR:
        return "rows of D are not aligned to sectors"
    if subtile_n(k, sector_aligned_store=0) * p.out.size % _SECTOR == 0:
        return "the widest subtile is sector-aligned anyway"
    return None


def _why_overlapped(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.epilogue != "overlapped":
        return None
    if Grid(k.tile_m, k.tile_n).tiles(p) * p.batch <= d.sm_count:
        return "with one tile per SM there is no next tile to overlap the store with"
    most = min(MOST_SUBTILES, -(-p.k // k.tile_k))
    count = subtiles(k)
    return f"{count} subtiles to store during a main loop, at most {most}" if count > most else None


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if not partitions_pay(p, d, (k.tile_m, k.tile_n), k.tile_k, k.split_k * k.cluster_k):
        return "split-K pays only if tiles leave SMs idle and k is long"
    return None


def partitions_pay(
    problem: GemmProblem, device: DeviceSpec, tile: tuple[int, int], tile_k: int, partitions: int
) -> bool:
    """Whether to split the k of tiles: only if tiles leave SMs idle and k is long."""
    if partitions == 1:
        return True
    tiles = Grid(*tile).tiles(problem) * problem.batch
    return tiles * (partitions - 1) < 2 * device.sm_count and problem.k >= 2 * partitions * tile_k


def _why_reduce_scatter(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.reduction == "reduce_scatter" and _ctas(k, p) > cuda.room_in_clusters(k.cluster, d):
        return "reduction=reduce_scatter needs all CTAs resident at once: they wait for each other"
    return None


def _ctas(k: Knobs, p: GemmProblem) -> int:
    """CTAs of a launch with one work tile each, including CTAs of clusters that lie partly outside D."""
    rows, columns = clusters(p, (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n))
    return rows * columns * k.cluster * p.batch * k.split_k


def _why_cluster(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    rows, columns = clusters(p, (k.tile_m, k.tile_n))
    room = cuda.room_in_clusters(k.cluster, d)
    if k.cluster > 2 and p.m > 2 * SMALL and _ctas(k, p) > room:
        return f"clusters of {k.cluster} fit {room} CTAs on the device: they pay only in a single wave"
    if (k.cluster_m > 1 and rows == 1) or (k.cluster_n > 1 and columns == 1):
        return "half of each cluster would lie outside D"
    return None


def _why_promote(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if p.dtype in cuda.FLOAT8 and not k.promote and p.k > 128:
        return "tensor cores accumulate 8-bit floats too coarsely for a long k: set promote"
    return None


def _why_pingpong(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    tiles = Grid(k.tile_m, k.tile_n).tiles(p) * p.batch * k.split_k
    if k.schedule == "pingpong" and tiles <= d.sm_count:
        return "with one tile per SM ping-pong has nothing to alternate"
    return None


SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("swap_ab", "tile_m", "tile_n"), _why_oversized),
    Rule(("swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k"), _why_swap),
    Rule(("tile_m", "tile_n"), _why_small),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k"), _why_cluster),
    Rule(STAGING, _why_store),
    Rule(SUBTILE, why_unaligned_anyway),
    Rule(STAGING, _why_overlapped),
    Rule(STAGES, _why_stages),
    Rule(("cluster_k", "tile_k", "stages"), _why_exchange),
    Rule(("promote",), _why_promote),
    Rule(("schedule", "tile_m", "tile_n", "split_k"), _why_pingpong),
    Rule(("tile_m", "tile_n", "tile_k", "cluster_k", "split_k"), _why_split),
    Rule(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "reduction"),
        _why_reduce_scatter,
    ),
    *TRAFFIC_RULES,
)
