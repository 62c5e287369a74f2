"""Rules of family ``skinny``: what is valid, and what of it is worth a trial."""

from __future__ import annotations

from kernels import cuda
from kernels.families.skinny_knobs import Knobs, Shape, early_registers, register_estimate, smem_bytes
from kernels.family import Rule
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

_STATIC_SMEM = 48 << 10
_RESIDENT_THREADS = 2048
_MOST_LOADS = 40


def _why_math(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return Shape.of(p).why_no_mma(d) if k.math == "mma" else None


def _why_threads(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    return f"{k.threads} threads in a block, at most 1024" if k.threads > 1024 else None


def _why_smem(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    used = smem_bytes(k, p)
    if used > _STATIC_SMEM:
        return f"the sums of all warps take {used} bytes of shared memory, at most {_STATIC_SMEM}"
    return None


def _why_registers(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    loads = Shape.of(p).chunks(k)
    if loads > _MOST_LOADS:
        return f"{loads} loads of 16 bytes in flight a lane, at most {_MOST_LOADS}"
    return cuda.why_registers(register_estimate(k, p, d.arch), k.threads, k.min_blocks)


def _why_early(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if d.arch != "sm_90":
        return "kernels overlap on sm_90 alone" if (k.prefetch, k.release) != (0, "started") else None
    if k.prefetch and p.stride_alignment(Shape.of(p).weights) < 16:
        return "only rows of whole 16 bytes are brought into the L2 ahead"
    return None


def _why_early_registers(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extra = early_registers(k, p, d.arch)
    if not extra:
        return None
    return cuda.why_registers(register_estimate(k, p, d.arch) + extra, k.threads, k.min_blocks)


def _why_fma(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shape = Shape.of(p)
    if k.math == "fma" and shape.rows > 4 and shape.why_no_mma(d) is None:
        return "ordinary units fall behind the memory beyond 4 thin rows; tensor cores do not"
    return None


def _why_loads(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    loads = Shape.of(p).chunks(k)
    if loads < 4:
        return f"{loads} loads in flight a lane do not cover the memory's latency"
    return None


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    shape = Shape.of(p)
    if k.warp_tiles * k.warps_wide > 1 and shape.tile_wide(k) >= 2 * shape.wide:
        return "more than half of the tile would lie outside D"
    return None


def _why_idle_warps(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.warps_k > 1 and p.k <= (k.warps_k // 2) * Shape.of(p).tile_k(k):
        return "half of the warps along k would have no slot"
    return None


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.split_k == 1:
        return None
    shape = Shape.of(p)
    tiles = -(-shape.wide // shape.tile_wide(k)) * p.batch
    if tiles * (k.split_k - 1) * k.threads >= d.units * _RESIDENT_THREADS:
        return "split-K pays only where the tiles alone leave multiprocessors unfilled"
    if p.k < k.split_k * k.warps_k * shape.tile_k(k):
        return "every warp of every split needs a slot"
    return None


def _why_min_blocks(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shape = Shape.of(p)
    blocks = -(-shape.wide // shape.tile_wide(k)) * p.batch * k.split_k
    if k.min_blocks > 1 and blocks <= d.units * (k.min_blocks - 1):
        return f"{blocks} blocks never put {k.min_blocks} on a multiprocessor"
    if k.min_blocks > 1 and k.min_blocks * k.threads > _RESIDENT_THREADS:
        return f"a multiprocessor holds {_RESIDENT_THREADS} threads"
    return None


def _why_prefetch(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.prefetch and p.operand_bytes < d.l2_bytes // 4:
        return "small operands wait in the L2 anyway"
    return None


_TILE = ("warp_tiles", "warps_wide")
_BLOCK = (*_TILE, "warps_k")
_HELD = ("math", *_BLOCK, "steps", "slots", "min_blocks")
RULES: tuple[Rule[Knobs], ...] = (
    # NOTE: the source asserts types and layouts, the assembler knows the architectures.
    Rule(("math",), _why_math),
    Rule(("warps_wide", "warps_k"), _why_threads),
    Rule(_BLOCK, _why_smem),
    Rule(_HELD, _why_registers, compiled=False),
    Rule(("prefetch", "release"), _why_early, compiled=False),
    Rule((*_HELD, "prefetch", "release"), _why_early_registers, compiled=False),
)
SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("math",), _why_fma),
    Rule(("warp_tiles", "steps", "slots"), _why_loads),
    Rule(_TILE, _why_oversized),
    Rule(("warps_k", "steps"), _why_idle_warps),
    Rule((*_BLOCK, "steps", "split_k"), _why_split),
    Rule((*_BLOCK, "split_k", "min_blocks"), _why_min_blocks),
    Rule(("prefetch",), _why_prefetch),
)
