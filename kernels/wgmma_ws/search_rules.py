"""Which ways of family ``wgmma_ws`` to ask for operands and to send off D are worth a trial: walks,
placement, what is asked for when, and how long the L2 keeps it."""

from __future__ import annotations

from kernels.common import cuda
from kernels.common.family import Rule
from kernels.wgmma_ws.config import TMA_STORES, Knobs
from kernels.wgmma_ws.layout import (
    BAND,
    SMALL,
    clusters,
    fixed_bytes,
    kept_bytes,
    running,
    single_wave,
    stage_bytes,
    store_boxes,
    store_bytes,
    store_width,
)
from kernels.wgmma_ws.validity import BOX, RING, STORE
from tilewright.artifact import Grid
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

_SHORT_FLOPS = 2**33  # 10 to 20 us in 16 bits


def _why_walk(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    rows, columns = clusters(p, extent)
    if min(rows, columns) == 1 and (k.raster, k.swizzle_size) != ("m", 1):
        return "a single line of clusters is walked in one way"
    along, across = (columns, rows) if k.raster == "n" else (rows, columns)
    if k.swizzle_size > 1 and k.swizzle_size >= 2 * along:
        return "the band is wider than the grid of tiles"
    if k.raster == "hilbert" and (k.swizzle_size < 4 or across < k.swizzle_size):
        return "a Hilbert curve needs squares of at least 4 x 4 tiles"
    turns = k.swizzle_size > 1 and along > k.swizzle_size
    if k.snake != turns:
        return "turning round costs nothing" if turns else "one band, or one row a band, has nothing to turn"
    if (
        single_wave(p, d, extent, k.cluster)
        and (k.raster, k.swizzle_size) != ("m", 1)
        and k.swizzle_size != BAND
    ):
        return "in a single wave the walk matters little"
    return None


def _why_streamed(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    if k.split_k > 1 and single_wave(p, d, extent, k.cluster, k.split_k):
        return None
    if k.l2_hints in ("stream_a", "stream_ab") and p.n > 4 * k.tile_n:
        return "A is read again by later columns of tiles"
    if k.l2_hints in ("stream_b", "stream_ab") and p.m > 4 * k.tile_m:
        return "B is read again by later rows of tiles"
    return None


def is_kept(p: GemmProblem, d: DeviceSpec, extent: int) -> bool:
    """Whether the L2 can keep an operand of so many rows of k, and D would drive it out."""
    return extent * p.k * p.dtype.size * p.batch <= kept_bytes(d) and _floods(p, d)


def _why_kept(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    kept = {"keep_a": p.m, "keep_b": p.n}.get(k.l2_hints)
    if kept is not None and not is_kept(p, d, kept):
        return "the L2 is asked to keep an operand where it can, and D would drive it out"
    return None


def why_stream_d(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    stored = k.epilogue in TMA_STORES and k.reduction != "kernel"
    if k.l2_hints == "stream_d" and not (stored and _floods(p, d)):
        return "D leaves the L2 to A and B where TMA stores it and it is large"
    return None


def _floods(p: GemmProblem, d: DeviceSpec) -> bool:
    return p.m * p.n * p.out.size * p.batch >= d.l2_bytes // 4


def why_prefetch(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.prefetch and (min(p.m, p.n) > 2 * SMALL or p.operand_bytes < d.l2_bytes // 4):
        return "operands that are small, or read by many tiles, wait in the L2 anyway"
    if k.prefetch and p.stride_alignment(cuda.weights(p)) < 16:
        return "rows that are copied for TMA are copied to the L2"
    return None


def why_cta_order(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cta_order == "gpc" and (min(p.m, p.n) <= 2 * SMALL or p.flops < _SHORT_FLOPS):
        return "a short kernel gains more by starting early, and blocks share little where D has few rows"
    return None


def why_reverse_k(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if not k.reverse_k:
        return None
    if k.split_k > 1:
        return "a block's units are different parts of k"
    rows, columns = clusters(p, (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n))
    if rows * columns <= running(k.cluster, d):
        return "a block that walks k once in a matrix has no way back"
    if min(p.m, p.n) * p.k * p.dtype.size <= kept_bytes(d):
        return "an operand that stays in the L2 is there whichever way k is walked"
    return None


TRAFFIC_RULES: tuple[Rule[Knobs], ...] = (
    Rule(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "raster", "swizzle_size", "snake"),
        _why_walk,
    ),
    Rule(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "l2_hints"),
        _why_streamed,
    ),
    Rule(("l2_hints",), _why_kept),
    Rule(("epilogue", "reduction", "l2_hints"), why_stream_d),
    Rule(("prefetch",), why_prefetch),
    Rule(("cta_order",), why_cta_order),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "reverse_k"), why_reverse_k),
)


_SECTOR = 32  # bytes of the L2
MOST_BOXES = 16  # each is a copy of the loop over k


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    for extent, tile, least in ((p.m, k.tile_m, 16 if k.swap_ab else 64), (p.n, k.tile_n, 16)):
        if tile > least and tile >= 2 * extent:
            return "more than half of the tile would lie outside D"
    return None


def _why_swap(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.swap_ab and (p.m > 2 * SMALL or k.tile_m > SMALL):
        return "D is transposed where it has few rows"
    if k.swap_ab and k.tile_n % 64:
        return "tile_n is wgmma's M: a multiple of 64"
    return None


def _why_small(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.tile_m * k.tile_n < 64 * 96 and Grid(128, 128).tiles(p) * p.batch >= d.sm_count:
        return "D has tiles of 128 x 128 for all SMs"
    return None


def enough_stages(k: Knobs, p: GemmProblem, d: DeviceSpec) -> int:
    """As many as fit and can be used."""
    depth = -(-p.k // (k.tile_k * k.split_k * k.cluster_k))
    return min(_useful_stages(k, p, d), max(3, depth))


def _useful_stages(k: Knobs, p: GemmProblem, d: DeviceSpec, spared: int = 0) -> int:
    """As many as fit, with so many bytes to spare, and hide latency."""
    deepest = (d.smem_per_block - fixed_bytes(k) - spared) // stage_bytes(k, p)
    return min(deepest, 12 * 64 // k.tile_k * (2 // p.dtype.size))


def _why_stages(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    enough = enough_stages(k, p, d)
    if k.stages < 3:
        return "two stages do not hide the latency of TMA"
    return f"{enough} stages fit and can be used" if k.stages != enough else None


def enough_boxes(k: Knobs) -> int:
    """Staged boxes that overlap, a power of two: more where whole sectors make them small."""
    most = min(4 if k.sector_aligned_store else 2, store_boxes(k))
    return max((count for count in (2, 4) if count <= most), default=1)


def _why_store(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    boxes = k.swap_ab or k.share[1] % 16 == 0 or p.stride_alignment("d") >= 16
    if k.epilogue == "direct" and boxes and p.out in (DType.FLOAT16, DType.BFLOAT16):
        return "staged stores are wider"
    if k.epilogue != "direct":
        enough = enough_boxes(k)
        if k.store_stages > enough:
            return f"{enough} staged boxes are enough for a tile of {store_boxes(k)}"
        more = store_bytes(k)  # as much as there is already
        if k.store_stages < enough and _useful_stages(k, p, d, more) == _useful_stages(k, p, d):
            return "twice as many staged boxes overlap, and cost the ring no stage"
    if k.epilogue == "stmatrix" and p.stride_alignment("d") >= 16:
        return "TMA stores the same boxes in fewer instructions"
    return None


def why_same_sectors(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.sector_aligned_store:
        return None
    if p.n * p.out.size % _SECTOR:
        return "rows of D start in the middle of a sector"
    if store_width(k, sector_aligned_store=0) * p.out.size % _SECTOR == 0:
        return "as many columns as divide are whole sectors"
    return None


def _why_deferred(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.epilogue != "overlapped":
        return None
    if Grid(k.tile_m, k.tile_n).tiles(p) * p.batch <= d.sm_count:
        return "with one tile an SM there is no next one to store behind"
    most = min(MOST_BOXES, -(-p.k // k.tile_k))
    boxes = store_boxes(k)
    return f"{boxes} boxes to store behind k tiles, {most} can be" if boxes > most else None


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shares = k.split_k * k.cluster_k
    if shares == 1:
        return None
    if k.split_k > 1 and k.reduction == "last_cta":
        return "a kernel after, or all CTAs of a tile together, add up its partials sooner than the last CTA"
    tiles = Grid(k.tile_m, k.tile_n).tiles(p) * p.batch
    if tiles * (shares - 1) >= 2 * d.sm_count or p.k < 2 * shares * k.tile_k:
        return "split-K pays only where tiles leave SMs idle and k is long"
    return None


def _why_shares(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.reduction == "reduce_scatter" and _blocks(k, p) > cuda.room_in_clusters(k.cluster, d):
        return "blocks that share a tile out wait for each other: all had better run at once"
    return None


def _blocks(k: Knobs, p: GemmProblem) -> int:
    """Blocks that do one unit each, those of clusters that lie partly outside of D included."""
    rows, columns = clusters(p, (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n))
    return rows * columns * k.cluster * p.batch * k.split_k


def _why_cluster(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    rows, columns = clusters(p, (k.tile_m, k.tile_n))
    room = cuda.room_in_clusters(k.cluster, d)
    if k.cluster > 2 and p.m > 2 * SMALL and _blocks(k, p) > room:
        return f"clusters of {k.cluster} find room for {room} blocks: worth it for a single wave of them"
    if (k.cluster_m > 1 and rows == 1) or (k.cluster_n > 1 and columns == 1):
        return "half of each cluster would lie outside D"
    return None


def _why_promote(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if p.dtype in cuda.FLOAT8 and not k.promote and p.k > 128:
        return "long sums of 8-bit floats drift too far in the tensor cores"
    return None


def _why_pingpong(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    tiles = Grid(k.tile_m, k.tile_n).tiles(p) * p.batch * k.split_k
    if k.schedule == "pingpong" and tiles <= d.sm_count:
        return "with one tile an SM there is no turn to take"
    return None


SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("swap_ab", "tile_m", "tile_n"), _why_oversized),
    Rule(("swap_ab", "tile_m", "tile_n"), _why_swap),
    Rule(("tile_m", "tile_n"), _why_small),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k"), _why_cluster),
    Rule(STORE, _why_store),
    Rule(BOX, why_same_sectors),
    Rule(STORE, _why_deferred),
    Rule(RING, _why_stages),
    Rule(("promote",), _why_promote),
    Rule(("schedule", "tile_m", "tile_n", "split_k"), _why_pingpong),
    Rule(("tile_m", "tile_n", "tile_k", "cluster_k", "split_k", "reduction"), _why_split),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "reduction"), _why_shares),
    *TRAFFIC_RULES,
)
