"""Validity rules of family ``wgmma_ws``: static_asserts of the source (``compiled``) and budgets."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.wgmma_ws.config import TMA_STORES, Knobs
from kernels.wgmma_ws.layout import (
    MOST_SPLITS,
    accumulator_registers,
    loads_c,
    pending_registers,
    slice_n,
    smem_bytes,
    subtiles,
)
from tilewright.artifact import MOST_CLUSTERS
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem, Layout

# Accumulator registers per thread that do not spill, by the number of consumers: found by compiling.
MAX_ACCUMULATORS = {1: 208, 2: 208, 3: 100}
MAX_WITH_PENDING = {1: 216, 2: 216, 3: 132}  # with the pending registers of an overlapped epilogue


def why_registers(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    accumulators, pending = accumulator_registers(k, p), pending_registers(k)
    budget = (MAX_WITH_PENDING if pending else MAX_ACCUMULATORS).get(k.consumers, 0)
    most = budget - pending - _other_registers(k, p)
    # NOTE: if something is added to f16 accumulators, the assembler unpacks them ahead of their use.
    if p.accumulate is DType.FLOAT16 and (p.has_c or p.has_bias or _adds_partials(k)):
        accumulators *= 2
    if accumulators > most:
        return f"{accumulators} accumulator registers a thread, {k.consumers} consumers have {most}"
    return None


def _adds_partials(k: Knobs) -> bool:
    """Whether a consumer adds the partials of other CTAs to its accumulators."""
    return k.cluster_k > 1 or k.reduction == "reduce_scatter"


def _other_registers(k: Knobs, p: GemmProblem) -> int:
    """Registers per thread beyond those that :data:`MAX_ACCUMULATORS` allows for; found by compiling."""
    if k.reduction == "reduce_scatter":
        return _registers_of_reduce_scatter(k, p)
    adds = _adds_partials(k)
    used = 0
    if adds:  # addresses and values of the partials
        alone = k.consumers == 1 or k.schedule == "pingpong"
        used = 32 if not alone else 52 if p.accumulate is DType.FLOAT16 else 36
    if k.reduction == "kernel":
        used += 16  # addresses of its partials
    if k.epilogue == "stmatrix":
        used += 64 if p.has_c or adds else 32  # addresses of the rows it copies, and reads
    if k.epilogue == "direct":
        used += 80 if adds else 24  # addresses of D
    if k.epilogue == "overlapped":
        used += 2 * subtiles(k) + 8 * (k.warpgroup_tile[0] // 64 - 1)  # addresses of subtiles and atoms
        used += 20 if p.layout is not Layout.NT else 0
        used += 16 if p.activation is Activation.GELU else 0
    reads = k.reduction == "none"  # otherwise the kernel after reads C and the bias
    if p.has_c and reads and not loads_c(k, p):
        used += 32
    if loads_c(k, p) and k.cluster_k > 1 and k.store_stages == 4:
        used += 24
    if p.has_bias and reads:
        used += _registers_of_bias(k, p)
    if k.promote:
        used += 24  # two sets of accumulators
    return used


def _registers_of_reduce_scatter(k: Knobs, p: GemmProblem) -> int:
    """Registers for addresses: partials reuse the registers of accumulators that were stored."""
    sets = 24 if k.promote else 0
    if k.consumers == 3:
        return sets + 4
    if p.has_c and (k.epilogue == "stmatrix" or k.swap_ab):
        return sets + 88  # addresses of the rows it reads, and copies
    by_tma = k.epilogue in TMA_STORES and k.schedule == "cooperative" and not k.swap_ab
    if by_tma and k.consumers == 1:
        return sets + (24 if p.has_bias and k.warpgroup_tile[0] > 128 else 16)
    if by_tma and not (p.has_c or p.has_bias):
        return sets + 16
    if k.epilogue == "stmatrix":
        return sets + 64  # addresses of the rows it copies
    return sets + (56 if p.has_c and p.has_bias and p.activation is Activation.GELU else 48)


def _registers_of_bias(k: Knobs, p: GemmProblem) -> int:
    gelu = p.activation is Activation.GELU
    if k.epilogue == "overlapped":
        return 80 if gelu else 0
    if _adds_partials(k) and not k.swap_ab:
        return max(32, k.warpgroup_tile[1] // 2)
    if p.has_c and not loads_c(k, p):
        return 32 + (48 if k.warpgroup_tile[0] > 64 and k.epilogue != "stmatrix" else 0)
    if loads_c(k, p) and k.consumers == 2:
        return 64
    copies = k.epilogue == "stmatrix" and k.warpgroup_tile[0] > 128
    return {1: 32, 2: 48, 3: 4}.get(k.consumers, 0) + (8 if gelu or copies else 0)


def _why_schedule(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.schedule == "pingpong" and (k.consumers_m, k.consumers_n) != (1, 1):
        return "ping-pong consumers do not share a tile: consumers_m and consumers_n are 1"
    if k.consumers > 3:
        return f"{k.consumers} consumers, registers allow 3"
    return None


def _why_warpgroup_tile(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % k.consumers_m or k.tile_n % k.consumers_n:
        return "consumers_m must divide tile_m, and consumers_n tile_n"
    extent, width = k.warpgroup_tile
    if extent % 64:
        return f"the warpgroup tile must be a multiple of 64 along the M of wgmma, got {extent}"
    if width % 8:
        return f"the warpgroup tile must be a multiple of 8 along the N of wgmma, got {width}"
    if p.dtype in (DType.INT8, DType.UINT8) and width > 32 and width % 16:
        return f"wgmma of integers has N in multiples of 16 above 32, got {width}"
    return None


def _why_tile_k(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_k * p.dtype.size not in (128, 256):
        return f"a stage of k is 128 or 256 bytes, got {k.tile_k * p.dtype.size}"
    return None


def _why_k_major(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if p.layout.a_transposed and k.tile_m % (64 * k.consumers_m):
        return f"tile_m must be a multiple of {64 * k.consumers_m} where A is stored K x M, got {k.tile_m}"
    if not p.layout.b_transposed and k.tile_n % (64 * k.consumers_n):
        return f"tile_n must be a multiple of {64 * k.consumers_n} where B is stored K x N, got {k.tile_n}"
    return None


def _why_cluster(k: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_no_room(k.cluster, d)


def _why_cluster_k(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cluster_k > 1 and k.warpgroup_tile[1] % 32:
        width = k.warpgroup_tile[1]
        return f"with cluster_k the warpgroup tile is a multiple of 32 along the N of wgmma, got {width}"
    return None


def _why_reduce_scatter(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.reduction != "reduce_scatter" or k.split_k == 1:
        return None
    if k.split_k > MOST_SPLITS:
        return f"reduction=reduce_scatter allows split_k up to {MOST_SPLITS}, got {k.split_k}"
    if k.warpgroup_tile[1] % (8 * k.split_k):
        return (
            f"reduction=reduce_scatter needs a warpgroup tile that is a multiple of 8 * split_k ="
            f" {8 * k.split_k} along the N of wgmma, got {k.warpgroup_tile[1]}"
        )
    return None


def _why_epilogue(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue == "direct":
        return None
    if p.out not in (DType.FLOAT16, DType.BFLOAT16):
        return f"staged epilogues store 16-bit elements, D is {p.out}; use epilogue=direct"
    if k.epilogue == "stmatrix" and not k.swap_ab and slice_n(k) % 16:
        return f"epilogue=stmatrix needs slices of a multiple of 16 columns, got {slice_n(k)}"
    if k.epilogue in TMA_STORES and p.stride_alignment("d") < 16:
        return "TMA stores only rows of D that are multiples of 16 bytes: use epilogue=stmatrix"
    return None


def _why_store_stages(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue == "direct" and k.store_stages > 1:
        return "epilogue=direct stages nothing: use store_stages=1"
    return None


def why_sector_aligned_store(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.sector_aligned_store:
        return None
    if k.epilogue not in TMA_STORES or k.swap_ab:
        return "sector_aligned_store needs a TMA epilogue and swap_ab=0"
    if slice_n(k) % 16:
        return f"sector_aligned_store needs slices of a multiple of 16 columns, got {slice_n(k)}"
    return None


def _why_promote(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.promote and p.dtype not in cuda.FLOAT8:
        return f"promote is for 8-bit floats, not for {p.dtype}"
    return None


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(k, p), d)


def _why_reduction(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.split_k == 1 and k.reduction != "none":
        return "without split-K there are no partials to add up: use reduction=none"
    if k.split_k > 1 and k.reduction == "none":
        return "split-K needs reduction=kernel or reduction=reduce_scatter"
    if k.cluster_k > 1 and k.split_k > 1 and k.reduction != "kernel":
        return "cluster_k and split_k together need reduction=kernel"
    return None


def _why_overlapped(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue != "overlapped":
        return None
    if k.schedule == "pingpong":
        return "ping-pong overlaps the store with the other consumer anyway: use epilogue=tma"
    if k.split_k * k.cluster_k > 1 or k.promote:
        return "epilogue=overlapped needs the whole k in one set of accumulators: use epilogue=tma"
    if p.has_c:
        return "epilogue=overlapped keeps the store stages busy, in which C arrives: use epilogue=tma"
    return None


def _why_cta_order(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cta_order == "free":
        return None
    if k.prefetch:
        return "cta_order=gpc launches without overlap, so nothing can be prefetched: use prefetch=0"
    if k.cluster == 1:
        return "cta_order=gpc needs a cluster: the hardware does not place single CTAs deterministically"
    return None


def _why_many_clusters(k: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.cta_order == "gpc" and d.sm_count // k.cluster > MOST_CLUSTERS:
        return f"cta_order=gpc orders {MOST_CLUSTERS} clusters at most, {d.sm_count // k.cluster} would run"
    return None


# The knobs that a rule reads, by what it is about.
_STORE = ("split_k", "reduction", "epilogue", "sector_aligned_store")
WARPGROUP_TILE = ("swap_ab", "tile_m", "tile_n", "consumers_m", "consumers_n")
SUBTILE = ("schedule", *WARPGROUP_TILE, "cluster_k", *_STORE)
STAGING = (*SUBTILE, "tile_k", "store_stages")
STAGES = (*STAGING, "stages")

RULES: tuple[Rule[Knobs], ...] = (
    Rule(("schedule", "consumers_m", "consumers_n"), _why_schedule),
    Rule(WARPGROUP_TILE, _why_warpgroup_tile),
    Rule(("tile_k",), _why_tile_k),
    Rule(("tile_m", "tile_n", "consumers_m", "consumers_n"), _why_k_major),
    Rule(("cluster_m", "cluster_n", "cluster_k"), _why_cluster),
    Rule((*WARPGROUP_TILE, "cluster_k"), _why_cluster_k),
    Rule((*WARPGROUP_TILE, "split_k", "reduction"), _why_reduce_scatter),
    Rule((*WARPGROUP_TILE, "cluster_k", "split_k", "reduction", "epilogue"), _why_epilogue),
    Rule(("epilogue", "store_stages"), _why_store_stages, compiled=False),
    Rule(SUBTILE, why_sector_aligned_store),
    Rule(("schedule", "cluster_k", "epilogue", "promote", "split_k"), _why_overlapped),
    Rule(("promote",), _why_promote),
    Rule(STAGES, _why_smem, compiled=False),
    Rule(("cluster_k", "split_k", "reduction"), _why_reduction),
    Rule((*SUBTILE, "promote", "store_stages"), why_registers, compiled=False),
    Rule(("cluster_m", "cluster_n", "cluster_k", "prefetch", "cta_order"), _why_cta_order),
    Rule(("cluster_m", "cluster_n", "cluster_k", "cta_order"), _why_many_clusters, compiled=False),
)
