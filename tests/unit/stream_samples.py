"""Problems, a base config and shorthands for the tests of family stream."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernels.families.stream import STREAM
from tilewright import Config, DeviceSpec, GemmProblem

H200 = DeviceSpec("cuda", "sm_90", "H200", 132, 140 << 30, 50 << 20, 232448, 233472)
A100 = dataclasses.replace(H200, arch="sm_80", name="A100", units=108, smem_per_block=166912)
DECODE, SIXTEEN = GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336)
LARGE, QUERIES = GemmProblem(16, 28672, 4096), GemmProblem(16, 6144, 4096)
TALL = GemmProblem(4096, 3, 1000, dtype="bfloat16", has_bias=True, activation="gelu")
BYTES = GemmProblem(8, 4096, 4096, dtype="float8_e4m3fn", batch=2)
THICK_BYTES = GemmProblem(16, 2048, 2048, dtype="float8_e4m3fn")
INTEGERS = GemmProblem(1024, 5, 8192, dtype="uint8", has_c=True)
PROBLEMS = [DECODE, QUERIES, SIXTEEN, LARGE, TALL, BYTES, THICK_BYTES, INTEGERS]
BASE = {
    "warp_tiles": 1, "warps": 4, "panels": 1, "split_k": 1, "stages": 4, "cluster_k": 1, "hint": "normal",
    "l2_promotion": 128, "prefetch": 0,
}  # fmt: skip


def config_of(**changes: int | str) -> Config:
    """BASE with other values of some knobs."""
    return Config.of("stream", BASE | changes)


def why(changes: dict[str, Any], problem: GemmProblem = DECODE, device: DeviceSpec = H200) -> str | None:
    """Why BASE with these changes is invalid."""
    return STREAM.why_invalid(config_of(**changes), problem, device)


def knobs_of(problem: GemmProblem) -> list[dict[str, Any]]:
    """The knobs of every pick."""
    return [dict(one.knobs) for one in STREAM.picks(problem, H200)]
