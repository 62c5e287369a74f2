"""Problems, a base config and shorthands for the tests of family gemv_tma."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernels.gemv_tma.config import Knobs
from kernels.gemv_tma.family import GEMV_TMA
from tilewright import Config, DeviceSpec, GemmProblem

H200 = DeviceSpec("cuda", "sm_90", "H200", 132, 140 << 30, 50 << 20, 232448, 233472)
A100 = dataclasses.replace(H200, arch="sm_80", name="A100", sm_count=108, smem_per_block=166912)
DECODE, SIXTEEN = GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336)
LARGE, QUERIES = GemmProblem(16, 28672, 4096), GemmProblem(16, 6144, 4096)
TALL = GemmProblem(4096, 3, 1000, dtype="bfloat16", has_bias=True, activation="gelu")
BYTES = GemmProblem(8, 4096, 4096, dtype="float8_e4m3fn", batch=2)
THICK_BYTES = GemmProblem(16, 2048, 2048, dtype="float8_e4m3fn")
INTEGERS = GemmProblem(1024, 5, 8192, dtype="uint8", has_c=True)
PROBLEMS = [DECODE, QUERIES, SIXTEEN, LARGE, TALL, BYTES, THICK_BYTES, INTEGERS]
BASE: dict[str, Any] = dataclasses.asdict(Knobs(stages=4))


def config_of(**changes: int | str) -> Config:
    """BASE with other values of some knobs."""
    return Config.of("gemv_tma", BASE | changes)


def why(changes: dict[str, Any], problem: GemmProblem = DECODE, device: DeviceSpec = H200) -> str | None:
    """Why BASE with these changes is invalid."""
    return GEMV_TMA.why_invalid(config_of(**changes), problem, device)


def knobs_of(problem: GemmProblem) -> list[dict[str, Any]]:
    """The knobs of every heuristic config."""
    return [dict(one.knobs) for one in GEMV_TMA.heuristic_configs(problem, H200)]
