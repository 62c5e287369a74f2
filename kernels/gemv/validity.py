"""Validity rules of family ``gemv``: static_asserts of the source (``compiled``) and budgets."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.gemv.config import Knobs
from kernels.gemv.layout import early_registers, loads_in_flight, register_estimate, smem_bytes
from kernels.gemv.shape import MAX_ACTIVATION_ROWS, GemvShape
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

_STATIC_SMEM = 48 << 10
_MOST_LOADS = 40


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why no config computes ``problem`` on ``device``, or None."""
    if min(problem.m, problem.n) > MAX_ACTIVATION_ROWS:
        return f"gemv is for m or n up to {MAX_ACTIVATION_ROWS}, not {problem.m} x {problem.n}"
    if problem.dtype.packing > 1:
        return f"gemv reads elements of whole bytes, not {problem.dtype}"
    if problem.accumulate is DType.FLOAT16:
        return "gemv accumulates in float32, float64 or int32, not float16"
    return cuda.why_unsupported(problem, device)


def why_no_mma(shape: GemvShape, device: DeviceSpec) -> str | None:
    """The reason why tensor cores do not multiply these operands, or None."""
    if shape.dtype in (DType.FLOAT32, DType.FLOAT64):
        return f"math=mma does not multiply {shape.dtype}: use fma"
    if not shape.k_major and shape.dtype.size != 2:
        return f"math=mma takes weights that are not K-major in 16-bit types only, not {shape.dtype}: use fma"
    if shape.dtype in cuda.FLOAT8 and device.compute_capability < (8, 9):
        return f"{device.arch} has no mma of {shape.dtype}: use fma"
    return None


def _why_math(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return why_no_mma(GemvShape.of(p), d) if c.math == "mma" else None


def _why_smem(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    used = smem_bytes(c, p)
    if used > _STATIC_SMEM:
        return f"the partials of all warps take {used} bytes of shared memory, at most {_STATIC_SMEM}"
    return None


def _why_registers(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    loads = loads_in_flight(c, GemvShape.of(p))
    if loads > _MOST_LOADS:
        return f"{loads} loads of 16 bytes in flight a lane, at most {_MOST_LOADS}"
    return cuda.why_registers(register_estimate(c, p, d.arch), c.threads, c.min_ctas_per_sm)


def _why_early(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if d.arch != "sm_90":
        return "kernels overlap on sm_90 alone" if (c.prefetch, c.release) != (0, "started") else None
    if c.prefetch and p.stride_alignment(GemvShape.of(p).weights) < 16:
        return "prefetch needs rows of whole 16 bytes"
    return None


def _why_early_registers(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    extra = early_registers(c, p, d.arch)
    if not extra:
        return None
    return cuda.why_registers(register_estimate(c, p, d.arch) + extra, c.threads, c.min_ctas_per_sm)


_HELD = ("math", "warps_k", "steps", "stages", "min_ctas_per_sm")
RULES: tuple[Rule[Knobs], ...] = (
    # NOTE: the source asserts types and layouts, the assembler knows the architectures.
    Rule(("math",), _why_math),
    Rule(("math", "warps_k"), _why_smem),
    Rule(_HELD, _why_registers, compiled=False),
    Rule(("prefetch", "release"), _why_early, compiled=False),
    Rule((*_HELD, "prefetch", "release"), _why_early_registers, compiled=False),
)
