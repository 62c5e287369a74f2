"""Validity rules of family ``gemv_tma``: static_asserts of the source (``compiled``) and budgets."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.gemv.shape import MAX_ACTIVATION_ROWS, GemvShape
from kernels.gemv_tma.config import CLUSTERS, Knobs
from kernels.gemv_tma.layout import activation_bytes, smem_bytes
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

_TYPES = (DType.FLOAT16, DType.BFLOAT16, *cuda.FLOAT8, DType.INT8, DType.UINT8)


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why no config computes ``problem`` on ``device``, or None."""
    reason = cuda.why_unsupported(problem, device) or _why_unsupported_operands(problem, device)
    smallest = Knobs(cluster_k=max(ctas for ctas in CLUSTERS if cuda.why_no_room(ctas, device) is None))
    rules = (rule.why(smallest, problem, device) for rule in RULES)
    return reason or cuda.why_no_tma(problem) or next(filter(None, rules), None)


def _why_unsupported_operands(problem: GemmProblem, device: DeviceSpec) -> str | None:
    if device.arch != "sm_90":
        return f"gemv_tma needs the TMA of sm_90, {device.arch} has none"
    if min(problem.m, problem.n) > MAX_ACTIVATION_ROWS:
        return f"gemv_tma is for m or n up to {MAX_ACTIVATION_ROWS}, not {problem.m} x {problem.n}"
    if problem.dtype not in _TYPES:
        return f"gemv_tma multiplies {', '.join(_TYPES)}, not {problem.dtype}"
    if problem.accumulate is DType.FLOAT16:
        return "gemv_tma accumulates in float32 or int32, not float16"
    if problem.layout.value != "nt":
        return f"gemv_tma reads operands whose rows run along k, layout nt, not {problem.layout.value}"
    return None


def _why_smem(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    reason = cuda.why_smem(smem_bytes(c, p), d)
    held = activation_bytes(c, p)
    return reason and f"{reason}; {held} hold activations: take a larger cluster or fewer stages"


def _why_registers(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    # NOTE: the assembler turns 8-bit floats into float16 before it multiplies. Found by compiling.
    large = c.warp_tiles == 2 or GemvShape.of(p).activation_rows == 16
    if p.dtype in cuda.FLOAT8 and c.warps == 16 and large:
        rows = "32 weight rows or 16 activation rows"
        return f"16 warps have 96 registers a thread, too few for 8-bit floats of {rows}"
    return None


def _why_no_room(c: Knobs, _p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_no_room(c.cluster_k, d)


_RING = ("warp_tiles", "warps", "k_chunks", "cluster_k", "stages")
RULES: tuple[Rule[Knobs], ...] = (
    Rule(_RING, _why_smem, compiled=False),
    Rule(("warp_tiles", "warps"), _why_registers, compiled=False),
    Rule(("cluster_k",), _why_no_room, compiled=False),
)
