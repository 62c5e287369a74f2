"""Which families win, by the winners of races that were counted: a prior for what a job tries first."""

from __future__ import annotations

from collections.abc import Container

from kernels.common import cuda
from kernels.gemv_tma.family import GEMV_TMA
from kernels.mma_sync.family import MMA_SYNC
from kernels.registry import families_for
from kernels.simt.family import SIMT, is_tiny
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wmma.family import WMMA
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

# After the winners of 356 races on sm_90, of 148 bfloat16 products (benchmarks/lab/2026-11-27-two-h200s.md):
# with an M or N of 16 or less the GEMV families won 92 of 99 and wgmma_ws two; of the other 228 with at least
# 2^29 operations wgmma_ws won 212 and wgmma 16; simt won none at all.
_LARGE_FLOPS, _FEW = 2**29, 16
_SELDOM, _RARELY = 1 / 2, 1 / 8


def prior(problem: GemmProblem, device: DeviceSpec, named: Container[str] = ()) -> dict[str, float]:
    """How likely each family that can compute ``problem`` is to be the fastest, roughly: 1, 1/2, 1/8 or 0.

    A job divides its first trials among families by it. It is 1 for all where no winners were counted: for
    types other than the 16-bit floats, and architectures other than sm_90.

    Args:
        named: families that are never 0, for instance because a request names them.
    """
    able = families_for(problem, device)
    if device.arch != "sm_90" or problem.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return dict.fromkeys(able, 1.0)
    rare, seldom = set[str](), set[str]()
    large = problem.flops >= _LARGE_FLOPS * problem.batch
    if not is_tiny(problem):
        rare |= {SIMT.name}
    if GEMV_TMA.name in able:
        rare |= {WGMMA.name}
        # NOTE: since that count wgmma_ws keeps more bytes in flight, and won with 8 and 16 rows of a long k
        # (benchmarks/lab/2026-11-30-bytes-in-flight.md).
        (seldom if 8 <= problem.m <= _FEW else rare).add(WGMMA_WS.name)
    if large and WGMMA_WS.name in able:
        rare |= {MMA_SYNC.name, WMMA.name}
        seldom |= {WGMMA.name}
    chances = {name: _RARELY if name in rare else _SELDOM if name in seldom else 1.0 for name in able}
    return chances | {name: 0.0 for name in _never_won(problem, large) if name in able and name not in named}


def _never_won(problem: GemmProblem, large: bool) -> set[str]:
    """The families that won none of the races on problems like this one; empty if none were counted, which
    were those with rows that TMA loads, accumulated in float32."""
    aligned = min(problem.stride_alignment(operand) for operand in "ab") >= cuda.TMA_ALIGNMENT
    if not aligned or problem.accumulate is not DType.FLOAT32:
        return set()
    found = set[str]() if is_tiny(problem) else {SIMT.name}
    if large and min(problem.m, problem.n) > _FEW:
        found |= {MMA_SYNC.name, WMMA.name}
    return found
