"""Rules of family ``wgmma``: which configs are valid, and which valid ones are worth a trial."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.wgmma.config import Knobs, register_estimate, smem_bytes
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem


def _why_rows(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % (64 * k.warpgroups):
        return f"tile_m must be a multiple of 64 * warpgroups = {64 * k.warpgroups}"
    return None


def _why_columns(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not p.layout.b_transposed and k.tile_n % 64:
        return f"tile_n must be a multiple of 64 if B is stored K x N, got {k.tile_n}"
    return None


def _why_epilogue(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue == "stmatrix" and p.out.size != 2:
        return f"stmatrix stores 16-bit elements, D is {p.out}; use epilogue=direct"
    return None


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(k, p), d)


def _why_registers(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    return cuda.why_registers(register_estimate(k, p), k.threads)


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if (k.tile_m > 64 and k.tile_m >= 2 * p.m) or (k.tile_n > 64 and k.tile_n >= 2 * p.n):
        return "more than half of the tile would lie outside D"
    return None


def _why_direct(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue == "direct" and p.out.size == 2:
        return "a staged epilogue stores wider rows than epilogue=direct"
    return None


def _why_short(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.stages > 3 and k.stages * k.tile_k >= 2 * p.k:
        return "more than half of the stages would stay empty"
    return None


def _why_swizzle_size(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    along = -(-p.m // k.tile_m) if k.raster == "m" else -(-p.n // k.tile_n)
    if k.swizzle_size > 1 and k.swizzle_size >= 2 * along:
        return "swizzle_size exceeds the grid of tiles"
    return None


RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "warpgroups"), _why_rows),
    Rule(("tile_n",), _why_columns),
    Rule(("epilogue",), _why_epilogue),
    Rule(("tile_m", "tile_n", "tile_k", "stages"), _why_smem, compiled=False),
    Rule(("tile_m", "tile_n", "warpgroups"), _why_registers, compiled=False),
)
SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "tile_n"), _why_oversized),
    Rule(("epilogue",), _why_direct),
    Rule(("tile_k", "stages"), _why_short),
    Rule(("tile_m", "tile_n", "raster", "swizzle_size"), _why_swizzle_size),
)
