"""Validity rules of family ``wgmma_ws``."""

from __future__ import annotations

from kernels import cuda
from kernels.families.wgmma_ws_budgets import MOST_PARTS, own_width, smem_bytes
from kernels.families.wgmma_ws_knobs import TMA_STORES, Knobs
from kernels.families.wgmma_ws_registers import why_sums
from kernels.family import Rule
from tilewright.artifact import MOST_CLUSTERS
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem


def _why_schedule(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.schedule == "pingpong" and (k.consumers_m, k.consumers_n) != (1, 1):
        return "ping-pong consumers do not share a tile: consumers_m and consumers_n are 1"
    if k.consumers > 3:
        return f"{k.consumers} consumers, registers allow 3"
    return None


def _why_share(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % k.consumers_m or k.tile_n % k.consumers_n:
        return "the consumers must share tile_m and tile_n evenly"
    extent, width = k.share
    if extent % 64:
        return f"a consumer's share along wgmma's M must be a multiple of 64, got {extent}"
    if width % 8:
        return f"a consumer's share along wgmma's N must be a multiple of 8, got {width}"
    if p.dtype in (DType.INT8, DType.UINT8) and width > 32 and width % 16:
        return f"wgmma of integers has N in multiples of 16 above 32, got {width}"
    return None


def _why_tile_k(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_k * p.dtype.size not in (128, 256):
        return f"a stage of k is 128 or 256 bytes, got {k.tile_k * p.dtype.size}"
    return None


def _why_panels(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if p.layout.a_transposed and k.tile_m % (64 * k.consumers_m):
        return f"tile_m must be a multiple of {64 * k.consumers_m} where A is stored K x M, got {k.tile_m}"
    if not p.layout.b_transposed and k.tile_n % (64 * k.consumers_n):
        return f"tile_n must be a multiple of {64 * k.consumers_n} where B is stored K x N, got {k.tile_n}"
    return None


def _why_cluster(k: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_no_room(k.cluster, d)


def _why_halves(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cluster_k > 1 and k.share[1] % 32:
        return f"with cluster_k a consumer's share along wgmma's N must be a multiple of 32, got {k.share[1]}"
    return None


def _why_shares(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.reduction != "shares" or k.split_k == 1:
        return None
    if k.split_k > MOST_PARTS:
        return f"at most {MOST_PARTS} blocks share a tile out, got split_k {k.split_k}"
    if k.share[1] % (8 * k.split_k):
        return f"{k.split_k} shares of a consumer's {k.share[1]} along wgmma's N must be multiples of 8"
    return None


def _why_epilogue(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue == "direct":
        return None
    if p.out not in (DType.FLOAT16, DType.BFLOAT16):
        return f"staged epilogues store 16-bit elements, D is {p.out}; use epilogue=direct"
    if k.epilogue == "stmatrix" and not k.swap_ab and own_width(k) % 16:
        return f"boxes that are copied need columns in multiples of 16, a consumer finishes {own_width(k)}"
    if k.epilogue in TMA_STORES and p.stride_alignment("d") < 16:
        return "TMA stores rows of D that are multiples of 16 bytes; use epilogue=stmatrix"
    return None


def _why_boxes(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    return (
        "without staging there is one store stage" if k.epilogue == "direct" and k.store_stages > 1 else None
    )


def why_sectors(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.whole_sectors:
        return None
    if k.epilogue not in TMA_STORES or k.swap_ab:
        return "only boxes that TMA stores, of a D that is not transposed, may be other than whole sectors"
    if own_width(k) % 16:
        return f"boxes of whole sectors need columns in multiples of 16, a consumer finishes {own_width(k)}"
    return None


def _why_promote(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.promote and p.dtype not in cuda.FLOAT8:
        return f"only sums of 8-bit floats are promoted, not of {p.dtype}"
    return None


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(k, p), d)


def _why_decomposition(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.split_k > 1 and k.stream_k:
        return "split_k and stream_k exclude each other"
    if k.split_k == 1 and k.reduction != "block":
        return "without split-K there are no parts to add up; use reduction=block"
    if k.cluster_k > 1 and (k.stream_k or (k.split_k > 1 and k.reduction != "kernel")):
        return "with cluster_k the parts of a tile are added up by a kernel after: use reduction=kernel"
    return None


def _why_deferred(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue != "deferred":
        return None
    if k.schedule == "pingpong":
        return "ping-pong hides a store behind the other consumer: use epilogue=tma"
    if k.split_k * k.cluster_k > 1 or k.stream_k or k.promote:
        return "only a tile whose sums one block keeps, in one set of registers, can wait: use epilogue=tma"
    if p.has_c and p.has_bias:
        return "registers do not hold a kept tile beside C and a bias: use epilogue=tma"
    return None


def _why_placement(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.placement == "free":
        return None
    if k.prefetch:
        return "kernels that do not overlap have no time to fetch ahead: use prefetch=0"
    if k.cluster == 1:
        return "single blocks are not placed alike twice, clusters are: use a cluster or placement=free"
    return None


def _why_order(k: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.placement == "gpc" and d.units // k.cluster > MOST_CLUSTERS:
        return f"the order of blocks holds {MOST_CLUSTERS} clusters, {d.units // k.cluster} would run"
    return None


SHARE = ("swap_ab", "tile_m", "tile_n", "consumers_m", "consumers_n")
BOX = ("schedule", *SHARE, "cluster_k", "split_k", "reduction", "epilogue", "whole_sectors")
STORE = (*BOX, "tile_k", "store_stages")
RING = (*STORE, "stages")

RULES: tuple[Rule[Knobs], ...] = (
    Rule(("schedule", "consumers_m", "consumers_n"), _why_schedule),
    Rule(SHARE, _why_share),
    Rule(("tile_k",), _why_tile_k),
    Rule(("tile_m", "tile_n", "consumers_m", "consumers_n"), _why_panels),
    Rule(("cluster_m", "cluster_n", "cluster_k"), _why_cluster),
    Rule((*SHARE, "cluster_k"), _why_halves),
    Rule((*SHARE, "split_k", "reduction"), _why_shares),
    Rule((*SHARE, "cluster_k", "split_k", "reduction", "epilogue"), _why_epilogue),
    Rule(("epilogue", "store_stages"), _why_boxes, compiled=False),
    Rule(BOX, why_sectors),
    Rule(("schedule", "cluster_k", "epilogue", "promote", "split_k", "stream_k"), _why_deferred),
    Rule(("promote",), _why_promote),
    Rule(RING, _why_smem, compiled=False),
    Rule(("cluster_k", "split_k", "reduction", "stream_k"), _why_decomposition),
    Rule(
        (*BOX, "promote", "stream_k"),
        why_sums,
        compiled=False,
    ),
    Rule(("cluster_m", "cluster_n", "cluster_k", "prefetch", "placement"), _why_placement),
    Rule(("cluster_m", "cluster_n", "cluster_k", "placement"), _why_order, compiled=False),
)
