"""Which ways of family ``wgmma_ws`` to ask for operands and to send off D are worth a trial: walks,
placement, what is asked for when, and how long the L2 keeps it."""

from __future__ import annotations

from kernels import cuda
from kernels.families.wgmma_ws_budgets import MULTIPLY_ADDS, row_alignment
from kernels.families.wgmma_ws_knobs import FETCH, TMA_STORES, Knobs
from kernels.families.wgmma_ws_walk import BAND, SMALL, clusters, kept_bytes, running, single_wave
from kernels.family import Rule
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

_SHORT_FLOPS = 2**33  # 10 to 20 us in 16 bits


def _why_walk(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    rows, columns = clusters(p, extent)
    if min(rows, columns) == 1 and (k.raster, k.group) != ("m", 1):
        return "a single line of clusters is walked in one way"
    along, across = (columns, rows) if k.raster == "n" else (rows, columns)
    if k.group > 1 and k.group >= 2 * along:
        return "the band is wider than the grid of tiles"
    if k.raster == "hilbert" and (k.group < 4 or across < k.group):
        return "a Hilbert curve needs squares of at least 4 x 4 tiles"
    turns = k.group > 1 and along > k.group
    if k.snake != turns:
        return "turning round costs nothing" if turns else "one band, or one row a band, has nothing to turn"
    if single_wave(p, d, extent, k.cluster) and (k.raster, k.group) != ("m", 1) and k.group != BAND:
        return "in a single wave the walk matters little"
    return None


def _why_fetch(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.l2_promotion > FETCH and row_alignment(p) < k.l2_promotion:
        return f"rows start in the middle of {k.l2_promotion} bytes"
    return None


def _why_hint(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extent = (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n)
    if k.split_k > 1 and single_wave(p, d, extent, k.cluster, k.split_k):
        return None
    if k.hint_a == "evict_first" and p.n > 4 * k.tile_n:
        return "A is read again by later columns of tiles"
    if k.hint_b == "evict_first" and p.m > 4 * k.tile_m:
        return "B is read again by later rows of tiles"
    return None


def is_kept(p: GemmProblem, d: DeviceSpec, extent: int) -> bool:
    """Whether the L2 can keep an operand of so many rows of k, and D would drive it out."""
    return extent * p.k * p.dtype.size * p.batch <= kept_bytes(d) and _floods(p, d)


def _why_kept(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if any(
        hint == "evict_last" and not is_kept(p, d, extent)
        for hint, extent in ((k.hint_a, p.m), (k.hint_b, p.n))
    ):
        return "the L2 is asked to keep an operand where it can, and D would drive it out"
    return None


def why_hint_d(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    stored = k.epilogue in TMA_STORES and k.reduction != "kernel"
    if k.hint_d != "normal" and not (stored and _floods(p, d)):
        return "D leaves the L2 to A and B"
    return None


def _floods(p: GemmProblem, d: DeviceSpec) -> bool:
    return p.m * p.n * p.out.size * p.batch >= d.l2_bytes // 4


def why_prefetch(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.prefetch and (min(p.m, p.n) > 2 * SMALL or p.operand_bytes < d.l2_bytes // 4):
        return "operands that are small, or read by many tiles, wait in the L2 anyway"
    if k.prefetch and p.stride_alignment(cuda.weights(p)) < 16:
        return "rows that are copied for TMA are copied to the L2"
    return None


def why_placement(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.placement == "gpc" and (min(p.m, p.n) <= 2 * SMALL or p.flops < _SHORT_FLOPS):
        return "a short kernel gains more by starting early, and blocks share little where D has few rows"
    return None


def why_snake_k(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if not k.snake_k:
        return None
    if k.split_k > 1:
        return "a block's units are different parts of k"
    rows, columns = clusters(p, (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n))
    if rows * columns <= running(k.cluster, d):
        return "a block that walks k once in a matrix has no way back"
    if min(p.m, p.n) * p.k * p.dtype.size <= kept_bytes(d):
        return "an operand that stays in the L2 is there whichever way k is walked"
    return None


def why_even_waves(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if not k.even_waves:
        return None
    if k.placement != "gpc":
        return "clusters that lie anywhere share nothing in a GPC, however their waves are cut"
    if k.stream_k or k.raster == "hilbert":
        return "stream-K shares out the last waves, and a Hilbert curve has no lines across a band"
    rows, columns = clusters(p, (k.tile_m * k.cluster_m, k.tile_n * k.cluster_n))
    if (columns if k.raster == "n" else rows) < k.group:
        return f"no band is {k.group} clusters wide"
    units, most = rows * columns * p.batch * k.split_k, running(k.cluster, d)
    even = most - most % k.group
    if units <= most or even == most:
        return "one wave has no next one to be even with, and a multiple of the band is even anyway"
    if even == 0 or -(-units // even) > -(-units // most):
        return "with fewer clusters it takes another wave, so all of them work"
    return None


def why_beat(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.beat:
        return None
    if k.placement != "gpc":
        return "only blocks of a GPC that take neighbouring tiles ask for the same lines"
    clocks = k.tile_m * k.tile_n * k.tile_k * p.dtype.size // 2 // MULTIPLY_ADDS
    if 2 * clocks < 3 * k.beat:
        return f"a stage is multiplied in {clocks} clocks: the beat would hold it up"
    return None


TRAFFIC_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "raster", "group", "snake"), _why_walk),
    Rule(("l2_promotion",), _why_fetch),
    Rule(
        ("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "hint_a", "hint_b"),
        _why_hint,
    ),
    Rule(("hint_a", "hint_b"), _why_kept),
    Rule(("epilogue", "reduction", "hint_d"), why_hint_d),
    Rule(("prefetch",), why_prefetch),
    Rule(("placement",), why_placement),
    Rule(("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "snake_k"), why_snake_k),
    Rule(
        (
            *("tile_m", "tile_n", "cluster_m", "cluster_n", "cluster_k", "split_k", "stream_k"),
            *("raster", "group", "placement", "even_waves"),
        ),
        why_even_waves,
    ),
    Rule(("tile_m", "tile_n", "tile_k", "placement", "beat"), why_beat),
)
