"""Registers of a thread that family ``wgmma_ws`` leaves for its sums: beyond that the assembler spills."""

from __future__ import annotations

from kernels.common import cuda
from kernels.common.family import Rule
from kernels.wgmma_ws.config import TMA_STORES, Knobs
from kernels.wgmma_ws.layout import (
    MOST_SPLITS,
    kept_registers,
    own_width,
    smem_bytes,
    store_boxes,
    sum_registers,
)
from tilewright.artifact import MOST_CLUSTERS
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem, Layout

# Accumulator registers of a thread, by consumers, that leave room for the rest: found by compiling.
MAX_SUMS = {1: 208, 2: 208, 3: 100}
MAX_KEPT = {1: 216, 2: 216, 3: 132}  # and with what is kept of the tile before


def why_sums(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    sums, kept = sum_registers(k, p), kept_registers(k)
    most = (MAX_KEPT if kept else MAX_SUMS).get(k.consumers, 0) - kept - _beside_sums(k, p)
    # NOTE: where something is added to f16 sums, the assembler unpacks them ahead of their use.
    if p.accumulate is DType.FLOAT16 and (p.has_c or p.has_bias or _gathers(k)):
        sums *= 2
    return (
        f"{sums} accumulator registers a thread, {k.consumers} consumers have {most}" if sums > most else None
    )


def _gathers(k: Knobs) -> bool:
    """Whether a consumer adds sums of other blocks to its own."""
    return k.cluster_k > 1 or (k.split_k > 1 and k.reduction != "kernel")


def _beside_sums(k: Knobs, p: GemmProblem) -> int:
    """Registers of a thread that :data:`MAX_SUMS` does not foresee; found by compiling."""
    if k.reduction == "reduce_scatter":
        return _beside_shares(k, p)
    gathers = _gathers(k)
    used = 0
    if gathers:  # addresses and values of the other parts
        alone = k.consumers == 1 or k.schedule == "pingpong"
        used = 32 if not alone else 52 if p.accumulate is DType.FLOAT16 else 36
    if k.reduction == "kernel":
        used += 16  # addresses of what it leaves
    if k.epilogue == "stmatrix":
        used += 64 if p.has_c or gathers else 32  # addresses of the rows it copies, and reads
    if k.epilogue == "direct":
        used += 80 if gathers else 24  # addresses of D
    if k.epilogue == "overlapped":
        used += 2 * store_boxes(k) + 8 * (k.share[0] // 64 - 1)  # addresses of boxes and of blocks of wgmma
        used += 20 if p.layout is not Layout.NT else 0
        used += 16 if p.activation is Activation.GELU else 0
    reads = k.reduction == "last_cta"  # else C and bias are the business of the kernel after
    if p.has_c and reads:
        used += 48 if k.epilogue == "overlapped" else 32
    if p.has_bias and reads:
        used += _beside_bias(k, p)
    if k.promote:
        return used + 24  # two sets of sums
    adds_up = k.split_k > 1 and k.reduction == "last_cta"
    # NOTE: two consumers that share a tile and add up parts of split-K spill a little from 128 sums on.
    return max(used, 88) if adds_up and k.schedule == "cooperative" and k.consumers == 2 else used


def _beside_shares(k: Knobs, p: GemmProblem) -> int:
    """The parts of a share take the registers of sums that were left; addresses come beside them."""
    sets = 24 if k.promote else 0
    if k.consumers == 3:
        return sets + 4
    if p.has_c and (k.epilogue == "stmatrix" or k.swap_ab):
        return sets + 88  # addresses of the rows it reads, and copies
    boxes = k.epilogue in TMA_STORES and k.schedule == "cooperative" and not k.swap_ab
    if boxes and k.consumers == 1:
        return sets + (24 if p.has_bias and k.share[0] > 128 else 16)
    if boxes and not (p.has_c or p.has_bias):
        return sets + 16
    if k.epilogue == "stmatrix":
        return sets + 64  # addresses of the rows it copies
    return sets + (56 if p.has_c and p.has_bias and p.activation is Activation.GELU else 48)


def _beside_bias(k: Knobs, p: GemmProblem) -> int:
    gelu = p.activation is Activation.GELU
    if k.epilogue == "overlapped":
        return 80 if gelu else 0
    if _gathers(k) and not k.swap_ab:
        return max(32, k.share[1] // 2)
    if p.has_c:
        return 32 + (48 if k.share[0] > 64 and k.epilogue != "stmatrix" else 0)
    copies = k.epilogue == "stmatrix" and k.share[0] > 128
    return {1: 32, 2: 48, 3: 4}.get(k.consumers, 0) + (8 if gelu or copies else 0)


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
    if k.reduction != "reduce_scatter" or k.split_k == 1:
        return None
    if k.split_k > MOST_SPLITS:
        return f"at most {MOST_SPLITS} CTAs split a tile that they reduce together, got split_k {k.split_k}"
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


def why_sector_aligned_store(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.sector_aligned_store:
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
    if k.split_k == 1 and k.reduction != "last_cta":
        return "without split-K there are no parts to add up; use reduction=last_cta"
    if k.cluster_k > 1 and k.split_k > 1 and k.reduction != "kernel":
        return "with cluster_k the parts of a tile are added up by a kernel after: use reduction=kernel"
    return None


def _why_deferred(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue != "overlapped":
        return None
    if k.schedule == "pingpong":
        return "ping-pong hides a store behind the other consumer: use epilogue=tma"
    if k.split_k * k.cluster_k > 1 or k.promote:
        return "only a tile whose sums one block keeps, in one set of registers, can wait: use epilogue=tma"
    if p.has_c and p.has_bias:
        return "registers do not hold a kept tile beside C and a bias: use epilogue=tma"
    return None


def _why_placement(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cta_order == "free":
        return None
    if k.prefetch:
        return "kernels that do not overlap have no time to fetch ahead: use prefetch=0"
    if k.cluster == 1:
        return "single blocks are not placed alike twice, clusters are: use a cluster or cta_order=free"
    return None


def _why_order(k: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.cta_order == "gpc" and d.sm_count // k.cluster > MOST_CLUSTERS:
        return f"the order of blocks holds {MOST_CLUSTERS} clusters, {d.sm_count // k.cluster} would run"
    return None


SHARE = ("swap_ab", "tile_m", "tile_n", "consumers_m", "consumers_n")
BOX = ("schedule", *SHARE, "cluster_k", "split_k", "reduction", "epilogue", "sector_aligned_store")
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
    Rule(BOX, why_sector_aligned_store),
    Rule(("schedule", "cluster_k", "epilogue", "promote", "split_k"), _why_deferred),
    Rule(("promote",), _why_promote),
    Rule(RING, _why_smem, compiled=False),
    Rule(("cluster_k", "split_k", "reduction"), _why_decomposition),
    Rule(
        (*BOX, "promote"),
        why_sums,
        compiled=False,
    ),
    Rule(("cluster_m", "cluster_n", "cluster_k", "prefetch", "cta_order"), _why_placement),
    Rule(("cluster_m", "cluster_n", "cluster_k", "cta_order"), _why_order, compiled=False),
)
