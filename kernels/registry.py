"""Every kernel family, by name."""

from __future__ import annotations

from typing import Any

from kernels.families.host import HOST
from kernels.families.mma_sync import MMA_SYNC
from kernels.families.simt import SIMT
from kernels.families.skinny import SKINNY
from kernels.families.stream import STREAM
from kernels.families.wgmma import WGMMA
from kernels.families.wgmma_ws import WGMMA_WS
from kernels.families.wmma import WMMA
from kernels.family import Family
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

FAMILIES: dict[str, Family[Any]] = {
    family.name: family for family in (WGMMA_WS, WGMMA, MMA_SYNC, WMMA, STREAM, SKINNY, SIMT, HOST)
}


def families_for(problem: GemmProblem, device: DeviceSpec) -> dict[str, Family[Any]]:
    """The families that can compute ``problem`` on ``device``, by name."""
    return {
        name: family for name, family in FAMILIES.items() if family.why_unsupported(problem, device) is None
    }
