"""Heuristic configs of family ``gemv_tma``, and the rules that refuse configs not worth a trial."""

from __future__ import annotations

import dataclasses

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.gemv.shape import GemvShape
from kernels.gemv_tma.config import CLUSTERS, K_CHUNK_BYTES, PREFETCHES, Knobs
from kernels.gemv_tma.layout import activation_bytes, activation_k_chunks, balance, ring_stages, smem_left
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_RING_BYTES = 128 << 10  # in flight: covers the memory's latency
_RING_ROOM = 120 << 10  # that the activations should leave for the ring
_SMALL_ACTIVATIONS = 28 << 10  # bytes that need no further k partitions
_SHORT_PARTITION = 60 << 10  # bytes of weights that a CTA loads while a cluster reduces two tiles
_BALANCED = 0.9  # of the SMs' time
_FEW_ROWS = 8  # activation rows; with more, only wide tiles make up for the reduction over a cluster
_RING_SIZES = (_RING_BYTES * 3 // 4, _RING_BYTES, _RING_BYTES * 5 // 4, _RING_BYTES * 3 // 2)

# warp_tiles, warps, k_chunks of configs that won on an H200. With few activation rows the first won 70 of 75
# races of three ladders (benchmarks/lab/2026-11-30-bytes-in-flight.md).
_STRUCTURES = (
    Knobs(2, 8, 1),
    Knobs(1, 8, 2),
    Knobs(1, 16, 1),
    Knobs(1, 4, 4),
    Knobs(1, 8, 1),
    Knobs(1, 4, 1),
    Knobs(2, 4, 4),
    Knobs(2, 4, 2),
)


def heuristic_configs(problem: GemmProblem, device: DeviceSpec) -> list[Knobs]:
    """Configs that won on an H200, with the cluster, stages and prefetch for this problem.

    The most promising one comes first; some may be invalid.
    """
    many = GemvShape.of(problem).activation_rows > _FEW_ROWS
    ordered = sorted(_STRUCTURES, key=lambda one: many and one.warp_tiles == 1)
    filled = [_filled(one, problem, device) for one in ordered]
    worth = [one for one in filled if not any(rule.why(one, problem, device) for rule in SEARCH_RULES)]
    return worth or filled


def _filled(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The config with the cluster, the stages of a ring and the prefetch that suit the problem."""
    config = _clustered(config, problem, device)
    config = dataclasses.replace(config, stages=ring_stages(config, _RING_BYTES, problem, device))
    ahead = (dataclasses.replace(config, prefetch=stages) for stages in sorted(PREFETCHES, reverse=True))
    return next(one for one in ahead if _why_prefetch(one, problem, device) is None)


def _clustered(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The config with the smallest cluster that leaves room for the ring and keeps the SMs busy, with wide
    tiles a pair at least. If none does, the cluster that keeps the SMs busiest."""
    clusters = [ctas for ctas in CLUSTERS if cuda.why_no_room(ctas, device) is None]
    options = [dataclasses.replace(config, cluster_k=ctas) for ctas in clusters]
    roomy = [one for one in options if smem_left(one, problem, device) >= _RING_ROOM] or options[-1:]
    whys = (why_cluster, _why_short_partition)
    worth = [one for one in roomy if not any(why(one, problem, device) for why in whys)] or roomy[:1]
    worth.sort(key=lambda one: one.cluster_k < one.warp_tiles)
    balanced = (one for one in worth if balance(one, problem, device) >= _BALANCED)
    return next(balanced, max(worth, key=lambda one: balance(one, problem, device)))


def _why_oversized(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.tile_weight_rows >= 2 * max(GemvShape.of(p).weight_rows, 16):
        return "half of the tile or more would lie outside D"
    return None


def _why_short(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.stage_k_chunks > max(4, activation_k_chunks(c, p)):
        return f"a stage has {c.stage_k_chunks} k chunks, a k partition {activation_k_chunks(c, p)}"
    return None


def why_cluster(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    """The reason why the config's clusters are not worth a trial, or None."""
    if c.cluster_k > c.warp_tiles and 2 * activation_bytes(c, p) < _SMALL_ACTIVATIONS:
        return "half as many CTAs hold the activations easily"
    return None


def _why_short_partition(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    weights = activation_k_chunks(c, p) * c.tile_weight_rows * K_CHUNK_BYTES
    if c.cluster_k > 1 and weights < _SHORT_PARTITION:
        return "a CTA finishes its partition of a tile before the cluster has reduced the previous tile"
    return None


def _why_depth(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    wanted = {ring_stages(c, ring_bytes, p, d) for ring_bytes in _RING_SIZES}
    if c.stages not in wanted:
        return f"only rings of about 96, 128, 160 and 192 KiB are tried: {sorted(wanted)} stages"
    return None


def _why_prefetch(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if c.prefetch and p.operand_bytes < d.l2_bytes // 4:
        return "small operands stay in the L2 anyway"
    if c.prefetch > 2 and c.prefetch * c.stage_k_chunks >= activation_k_chunks(c, p) + c.stage_k_chunks:
        return "prefetch covers the first work tile only"
    return None


_STAGE = ("warp_tiles", "warps", "k_chunks")
SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("warp_tiles",), _why_oversized),
    Rule(("warps", "k_chunks", "cluster_k"), _why_short),
    Rule(("warp_tiles", "cluster_k"), why_cluster),
    Rule(("warp_tiles", "cluster_k"), _why_short_partition),
    Rule((*_STAGE, "cluster_k", "stages"), _why_depth),
    Rule(("warps", "k_chunks", "cluster_k", "prefetch"), _why_prefetch),
)
