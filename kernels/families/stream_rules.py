"""Rules of family ``stream``: what is valid, and what of it is worth a trial."""

from __future__ import annotations

from kernels import cuda
from kernels.families.skinny_knobs import Shape
from kernels.families.stream_knobs import (
    CLUSTERS,
    MOST_STAGES,
    PANEL_BYTES,
    Knobs,
    flag_bytes,
    grid,
    panel_elements,
    room,
    slot_bytes,
    smem_bytes,
    smem_left,
    thin_panels,
)
from kernels.family import Rule
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

RING_BYTES = 128 << 10  # in flight that cover the memory's latency with some to spare
THIN_BYTES = 28 << 10  # that a thin operand takes with ease
BRIEF_BYTES = 60 << 10  # of weights, which a block loads while a cluster adds up two tiles
ROOM = 120 << 10  # that a ring should have beside the thin operand
BALANCED = 0.9  # of the multiprocessors' time
_RINGS = (RING_BYTES * 3 // 4, RING_BYTES, RING_BYTES * 5 // 4, RING_BYTES * 3 // 2)


def most_stages(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> int:
    """Stages that fit the device's shared memory; may be less than any legal number."""
    return min(MOST_STAGES, smem_left(k, problem, device) // slot_bytes(k))


def ring_stages(k: Knobs, ring_bytes: int, problem: GemmProblem, device: DeviceSpec) -> int:
    """Stages of about ``ring_bytes``, or as many as fit."""
    return min(max(2, -(-ring_bytes // k.stage_bytes)), most_stages(k, problem, device))


def balance(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    """Useful share of the time of those multiprocessors that blocks can fill, 0 .. 1: blocks with a unit less
    than others wait."""
    geometry = grid(k, problem, device)
    shares = geometry.tiles(problem) * problem.batch * k.shares
    rounds = -(-shares // geometry.blocks(problem)[0])
    return shares / (rounds * room(k, device))


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    reason = cuda.why_smem(smem_bytes(k, p) + flag_bytes(k), d)
    held = thin_panels(k, p) * Shape.of(p).rows * PANEL_BYTES
    return reason and f"{reason}; {held} hold the thin operand: share k out or take fewer stages"


def _why_registers(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    # NOTE: the assembler turns 8-bit floats into float16 before it multiplies. Found by compiling.
    if p.dtype in cuda.FLOAT8 and k.warps == 16 and (k.warp_tiles == 2 or Shape.of(p).rows == 16):
        return "16 warps have 96 registers a thread, too few for 8-bit floats of 32 rows, or of 16 thin ones"
    return None


def _why_no_room(k: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_no_room(k.cluster_k, d)


def _why_shared_twice(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cluster_k > 1 and k.split_k > 1:
        return "the blocks of a cluster add up their parts of k among them: with cluster_k, split_k is 1"
    return None


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_wide >= 2 * max(Shape.of(p).wide, 16):
        return "half of the tile or more would lie outside D"
    return None


def _why_short(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.stage_panels > max(4, thin_panels(k, p)):
        return f"a stage has {k.stage_panels} panels, a share of k {thin_panels(k, p)}"
    return None


def why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.split_k == 1:
        return None
    for blocks in CLUSTERS:
        whole = Knobs(k.warp_tiles, k.warps, k.panels, cluster_k=blocks)
        roomy, even = smem_left(whole, p, d) >= ROOM, balance(whole, p, d) >= BALANCED
        if roomy and even and why_cluster(whole, p, d) is None:
            return "clusters hold the thin operand and share the work out, and add up at less cost"
    if p.k < 2 * k.split_k * k.stage_panels * panel_elements(p):
        return "every split needs two stages"
    return None


def why_cluster(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cluster_k > 1 and 2 * thin_panels(k, p) * Shape.of(p).rows * PANEL_BYTES < THIN_BYTES:
        return "half as many blocks hold the thin operand with ease"
    return None


def _why_brief(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.cluster_k > 1 and thin_panels(k, p) * k.tile_wide * PANEL_BYTES < BRIEF_BYTES:
        return "a block's share of a tile is over before the cluster has added up the one before"
    return None


def _why_depth(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    wanted = {ring_stages(k, ring_bytes, p, d) for ring_bytes in _RINGS}
    if k.stages not in wanted:
        return f"tried are rings of about 96, 128, 160 and 192 KiB, here {sorted(wanted)} stages"
    return None


def why_prefetch(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.prefetch and p.operand_bytes < d.l2_bytes // 4:
        return "small operands wait in the L2 anyway"
    if k.prefetch > 2 and k.prefetch * k.stage_panels >= thin_panels(k, p) + k.stage_panels:
        return "only stages of the first unit are brought into the L2 ahead"
    return None


_STAGE = ("warp_tiles", "warps", "panels")
_SHARES = ("split_k", "cluster_k")
_RING = (*_STAGE, *_SHARES, "stages")
RULES: tuple[Rule[Knobs], ...] = (
    Rule(_RING, _why_smem, compiled=False),
    Rule(("warp_tiles", "warps"), _why_registers, compiled=False),
    Rule(("cluster_k",), _why_no_room, compiled=False),
    Rule(_SHARES, _why_shared_twice),
)
SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("warp_tiles",), _why_oversized),
    Rule(("warps", "panels", *_SHARES), _why_short),
    Rule(_SHARES, why_cluster),
    Rule(("warp_tiles", *_SHARES), _why_brief),
    Rule((*_STAGE, *_SHARES), why_split),
    Rule(_RING, _why_depth),
    Rule(("warps", "panels", *_SHARES, "prefetch"), why_prefetch),
)
