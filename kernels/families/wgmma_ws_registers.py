"""Registers of a thread that family ``wgmma_ws`` leaves for its sums: beyond that the assembler spills."""

from __future__ import annotations

from kernels.families.wgmma_ws_budgets import kept_registers, store_boxes, sum_registers
from kernels.families.wgmma_ws_knobs import TMA_STORES, Knobs
from tilewright.device import DeviceSpec
from tilewright.problem import Activation, DType, GemmProblem, Layout

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
    return k.cluster_k > 1 or bool(k.stream_k) or (k.split_k > 1 and k.reduction != "kernel")


def _beside_sums(k: Knobs, p: GemmProblem) -> int:
    """Registers of a thread that :data:`MAX_SUMS` does not foresee; found by compiling."""
    if k.reduction == "shares":
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
    if k.epilogue == "deferred":
        used += 2 * store_boxes(k) + 8 * (k.share[0] // 64 - 1)  # addresses of boxes and of blocks of wgmma
        used += 20 if p.layout is not Layout.NT else 0
        used += 16 if p.activation is Activation.GELU else 0
    reads = k.reduction == "block"  # else C and bias are the business of the kernel after
    if p.has_c and reads:
        used += 48 if k.epilogue == "deferred" else 32
    if p.has_bias and reads:
        used += _beside_bias(k, p)
    if k.promote:
        return used + 24  # two sets of sums
    adds_up = k.split_k > 1 and k.reduction == "block"
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
    return sets + (56 if p.has_c and p.has_bias and p.activation is Activation.GELU else 48)


def _beside_bias(k: Knobs, p: GemmProblem) -> int:
    gelu = p.activation is Activation.GELU
    if k.epilogue == "deferred":
        return 80 if gelu else 0
    if _gathers(k) and not k.swap_ab:
        return max(32, k.share[1] // 2)
    if p.has_c:
        return 32 + (48 if k.share[0] > 64 and k.epilogue != "stmatrix" else 0)
    copies = k.epilogue == "stmatrix" and k.share[0] > 128
    return {1: 32, 2: 48, 3: 4}.get(k.consumers, 0) + (8 if gelu or copies else 0)
