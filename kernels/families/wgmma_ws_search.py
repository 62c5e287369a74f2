"""What of family ``wgmma_ws`` is worth a trial: tiles, clusters, stages, stores and parts of k; the rest with
:mod:`kernels.families.wgmma_ws_traffic`."""

from __future__ import annotations

from kernels import cuda
from kernels.families.wgmma_ws_budgets import (
    fixed_bytes,
    stage_bytes,
    store_boxes,
    store_bytes,
    store_width,
)
from kernels.families.wgmma_ws_knobs import Knobs
from kernels.families.wgmma_ws_rules import BOX, RING, STORE
from kernels.families.wgmma_ws_traffic import TRAFFIC_RULES
from kernels.families.wgmma_ws_walk import SMALL, clusters
from kernels.family import Rule
from tilewright.artifact import Grid
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

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
    if k.tile_m * k.tile_n < 64 * 96 and Grid(128, 128).tiles(p) * p.batch >= d.units:
        return "D has tiles of 128 x 128 for all multiprocessors"
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
    most = min(4 if k.whole_sectors else 2, store_boxes(k))
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
    if not k.whole_sectors:
        return None
    if p.n * p.out.size % _SECTOR:
        return "rows of D start in the middle of a sector"
    if store_width(k, whole_sectors=0) * p.out.size % _SECTOR == 0:
        return "as many columns as divide are whole sectors"
    return None


def _why_deferred(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.epilogue != "deferred":
        return None
    if Grid(k.tile_m, k.tile_n).tiles(p) * p.batch <= d.units:
        return "with one tile a multiprocessor there is no next one to store behind"
    most = min(MOST_BOXES, -(-p.k // k.tile_k))
    boxes = store_boxes(k)
    return f"{boxes} boxes to store behind k tiles, {most} can be" if boxes > most else None


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shares = k.split_k * k.cluster_k
    if shares == 1 and not k.stream_k:
        return None
    tiles = Grid(k.tile_m, k.tile_n).tiles(p) * p.batch
    if k.stream_k:
        tail = tiles % d.units
        if tail == 0 or (tiles > d.units and 2 * tail >= d.units) or p.k < 8 * k.tile_k:
            return "the last wave is full enough, or k too short, for stream-K"
        return None
    if tiles * (shares - 1) >= 2 * d.units or p.k < 2 * shares * k.tile_k:
        return "split-K pays only where tiles leave multiprocessors idle and k is long"
    return None


def _why_shares(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.reduction == "shares" and _blocks(k, p) > cuda.room_in_clusters(k.cluster, d):
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
    if k.schedule == "pingpong" and tiles <= d.units and not k.stream_k:
        return "with one tile a multiprocessor there is no turn to take"
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
    Rule(("schedule", "tile_m", "tile_n", "split_k", "stream_k"), _why_pingpong),
    Rule(("tile_m", "tile_n", "tile_k", "cluster_k", "split_k", "stream_k"), _why_split),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "reduction"), _why_shares),
    *TRAFFIC_RULES,
)
