"""Every kernel family, by name."""

from __future__ import annotations

from typing import Any

from kernels.base.family import Family
from kernels.gemv.family import GEMV
from kernels.gemv_tma.family import GEMV_TMA
from kernels.host.family import HOST
from kernels.mma_sync.family import MMA_SYNC
from kernels.simt.family import SIMT
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wmma.family import WMMA
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

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
