"""Every kernel family, by name."""

from __future__ import annotations

from typing import Any

from kernels.base.family import Family
from kernels.common import cuda
from kernels.gemv.family import GEMV
from kernels.gemv_tma.family import GEMV_TMA
from kernels.host.family import HOST
from kernels.mma_sync.family import MMA_SYNC
from kernels.simt.family import SIMT, is_tiny
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wmma.family import WMMA
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

FAMILIES: dict[str, Family[Any]] = {
    family.name: family for family in (WGMMA_WS, WGMMA, MMA_SYNC, WMMA, GEMV_TMA, GEMV, SIMT, HOST)
}

# Names of earlier releases, as in stored configs and recorded files, and the current name of each.
RENAMED = {"skinny": "gemv", "stream": "gemv_tma"}  # codespell:ignore skinny


def family_named(name: str) -> Family[Any]:
    """The family that has the name in this release or had it in an earlier one.

    Raises:
        KeyError: no family has or had the name.
    """
    return FAMILIES[RENAMED.get(name, name)]


def completed(config: Config) -> Config:
    """A config that an earlier release stored, under today's names of its family and its knobs.

    Raises:
        KeyError: no family has or had the name.
    """
    return family_named(config.family).completed(config)


def families_for(problem: GemmProblem, device: DeviceSpec) -> dict[str, Family[Any]]:
    """The families that can compute ``problem`` on ``device``, by name."""
    return {
        name: family for name, family in FAMILIES.items() if family.why_unsupported(problem, device) is None
    }


# After the winners of 356 races on sm_90, of 148 bfloat16 products (benchmarks/lab/2026-11-27-two-h200s.md):
# with an M or N of 16 or less the GEMV families won 92 of 99 and wgmma_ws two; of the other 228 with at least
# 2^29 operations wgmma_ws won 212 and wgmma 16; simt won none at all.
_LARGE_FLOPS, _FEW = 2**29, 16
_SELDOM, _RARELY = 1 / 2, 1 / 8


def hopeless(problem: GemmProblem, device: DeviceSpec) -> set[str]:
    """The families that won none of the races that were counted on problems like this one: with rows that TMA
    loads, accumulated in float32, on the types and architecture of :func:`odds`. Empty for others."""
    aligned = min(problem.stride_alignment(operand) for operand in "ab") >= cuda.TMA_ALIGNMENT
    if not (_counted(problem, device) and aligned and problem.accumulate is DType.FLOAT32):
        return set()
    found = set[str]() if is_tiny(problem) else {SIMT.name}
    if _is_large(problem) and min(problem.m, problem.n) > _FEW:
        found |= {MMA_SYNC.name, WMMA.name}
    return found


def odds(problem: GemmProblem, device: DeviceSpec) -> dict[str, float]:
    """How likely each family that can compute ``problem`` is to be the fastest, roughly: 1, 1/2 or 1/8.

    A job divides its first trials among families by these odds. All odds are 1 where no winners were counted:
    for types other than the 16-bit floats, and architectures other than sm_90.
    """
    able = families_for(problem, device)
    rare, seldom = set[str](), set[str]()
    if _counted(problem, device):
        if not is_tiny(problem):
            rare |= {SIMT.name}
        if GEMV_TMA.name in able:
            rare |= {WGMMA.name}
            # NOTE: since that count wgmma_ws keeps more bytes in flight, and won with 8 and 16 rows of a long
            # k (benchmarks/lab/2026-11-30-bytes-in-flight.md).
            (seldom if 8 <= problem.m <= _FEW else rare).add(WGMMA_WS.name)
        if _is_large(problem) and WGMMA_WS.name in able:
            rare |= {MMA_SYNC.name, WMMA.name}
            seldom |= {WGMMA.name}
    return {name: _RARELY if name in rare else _SELDOM if name in seldom else 1.0 for name in able}


def _counted(problem: GemmProblem, device: DeviceSpec) -> bool:
    return device.arch == "sm_90" and problem.dtype in (DType.FLOAT16, DType.BFLOAT16)


def _is_large(problem: GemmProblem) -> bool:
    return problem.flops >= _LARGE_FLOPS * problem.batch
