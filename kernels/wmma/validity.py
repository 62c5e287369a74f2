"""Validity rules of family ``wmma``: static_asserts of the source (``compiled``) and budgets."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda, tiling
from kernels.wmma.config import Knobs, register_estimate, smem_bytes
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why no config computes ``problem`` on ``device``, or None."""
    if problem.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return f"wmma multiplies float16 and bfloat16, not {problem.dtype}"
    return cuda.why_unsupported(problem, device)


def accumulate_of(problem: GemmProblem) -> str:
    """The value of knob ``accumulate`` that a problem asks for."""
    return "f16" if problem.accumulate is DType.FLOAT16 else "f32"


def _why_warp_tiles(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.tile_m % (16 * c.warps_m):
        return f"tile_m must be a multiple of 16 * warps_m = {16 * c.warps_m}"
    if c.tile_n % (16 * c.warps_n):
        return f"tile_n must be a multiple of 16 * warps_n = {16 * c.warps_n}"
    if c.threads > 1024:
        return f"{c.threads} threads in a CTA, at most 1024"
    return None


def _why_accumulate(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.accumulate != accumulate_of(p):
        return f"accumulate={c.accumulate} does not accumulate in {p.accumulate}"
    return None


def _why_registers(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    return cuda.why_registers(register_estimate(c), c.threads)


def _why_smem(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(c, p), d)


def _why_split_flag(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_no_split_flag(smem_bytes(c, p), c.split_k, d)


WARP_TILES = ("tile_m", "tile_n", "warps_m", "warps_n")
_SMEM = ("tile_m", "tile_n", "tile_k", "stages", "smem_layout", "accumulate")
RULES: tuple[Rule[Knobs], ...] = (
    Rule(WARP_TILES, _why_warp_tiles),
    Rule((*WARP_TILES, "tile_k"), tiling.why_copies),
    Rule(("accumulate",), _why_accumulate, compiled=False),
    Rule((*WARP_TILES, "accumulate"), _why_registers, compiled=False),
    Rule(_SMEM, _why_smem, compiled=False),
    Rule((*_SMEM, "split_k"), _why_split_flag, compiled=False),
)
