"""Rules of family ``stream``: what is valid, and what of it is worth a trial."""

from __future__ import annotations

from kernels import cuda
from kernels.families.skinny_knobs import Shape
from kernels.families.stream_knobs import (
    MOST_STAGES,
    PANEL_BYTES,
    Knobs,
    flag_bytes,
    grid,
    panel_elements,
    smem_bytes,
    smem_left,
    thin_panels,
)
from kernels.family import Rule
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

RING_BYTES = 96 << 10  # in flight that cover the memory's latency with some to spare
ROOM = 80 << 10  # that a ring should have beside the thin operand
_RINGS = (RING_BYTES // 2, RING_BYTES, RING_BYTES * 3 // 2)
_EVEN = 0.98


def most_stages(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> int:
    """Stages that fit the device's shared memory; may be less than any legal number."""
    stage = k.stage_bytes + 8 * k.warps
    return min(MOST_STAGES, smem_left(k, problem, device) // stage)


def ring_stages(k: Knobs, ring_bytes: int, problem: GemmProblem, device: DeviceSpec) -> int:
    """Stages of about ``ring_bytes``, or as many as fit."""
    return min(max(2, -(-ring_bytes // k.stage_bytes)), most_stages(k, problem, device))


def balance(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Useful share of the multiprocessors' time, 0 .. 1: blocks with a unit less than others wait."""
    geometry = grid(k, problem, device)
    units = geometry.tiles(problem) * problem.batch * k.split_k
    rounds = -(-units // geometry.blocks(problem)[0])
    return units / (rounds * device.units)


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    reason = cuda.why_smem(smem_bytes(k, p) + flag_bytes(k), d)
    held = thin_panels(k, p) * Shape.of(p).rows * PANEL_BYTES
    return reason and f"{reason}; {held} hold the thin operand: split k or take fewer stages"


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_wide >= 2 * max(Shape.of(p).wide, 16):
        return "half of the tile or more would lie outside D"
    return None


def _why_short(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.stage_panels > max(4, thin_panels(k, p)):
        return f"a stage has {k.stage_panels} panels, a split {thin_panels(k, p)}"
    return None


def why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.split_k == 1:
        return None
    whole = Knobs(k.warp_tiles, k.warps, k.panels)
    if smem_left(whole, p, d) >= ROOM and balance(whole, p, d) >= _EVEN:
        return "split-K pays only where tiles do not share the work out evenly, or to hold the thin operand"
    if p.k < 2 * k.split_k * k.stage_panels * panel_elements(p):
        return "every split needs two stages"
    return None


def _why_depth(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    wanted = {ring_stages(k, ring_bytes, p, d) for ring_bytes in _RINGS}
    if k.stages not in wanted:
        return f"tried are rings of about 48, 96 and 144 KiB, here {sorted(wanted)} stages"
    return None


def why_prefetch(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.prefetch and p.operand_bytes < d.l2_bytes // 4:
        return "small operands wait in the L2 anyway"
    if k.prefetch > 2 and k.prefetch * k.stage_panels >= thin_panels(k, p) + k.stage_panels:
        return "only stages of the first unit are brought into the L2 ahead"
    return None


_STAGE = ("warp_tiles", "warps", "panels")
_RING = (*_STAGE, "split_k", "stages")
RULES: tuple[Rule[Knobs], ...] = (Rule(_RING, _why_smem, compiled=False),)
SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("warp_tiles",), _why_oversized),
    Rule(("warps", "panels", "split_k"), _why_short),
    Rule((*_STAGE, "split_k"), why_split),
    Rule(_RING, _why_depth),
    Rule(("warps", "panels", "split_k", "prefetch"), why_prefetch),
)
