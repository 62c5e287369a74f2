"""Rows and provenance of a suite as a GPU would give them; figures are chosen by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.common.shapes import Shape
from benchmarks.suite.files import Row
from kernels.registry import completed
from tilewright import Config
from tilewright.artifact import Resources
from tilewright.schema.problem import DType
from tilewright.schema.trial import Baseline, BestConfig, Provenance, Timing

H200: dict[str, Any] = {
    "kind": "cuda", "arch": "sm_90", "name": "NVIDIA H200", "sm_count": 132, "memory_bytes": 150_109_880_320,
    "l2_bytes": 62_914_560, "smem_per_block": 232_448, "smem_per_sm": 233_472, "memory_gbps": 4814,
    "clock_mhz": 1980, "power_watts": 700, "mig": "",
}  # fmt: skip
RUN: dict[str, Any] = {
    "device": H200,
    "device_class": "sm_90-132sm-150gb-700w",
    "driver": "nvidia 580",
    "method": "suite-v1",
    "libraries": {"cupy": "14.2", "cublaslt": "130001"},
    "dtype": "float16",
    "rounds": 9,
    "seed": 0,
}
CONFIG = Config.of("wgmma", {"tile_m": 128, "tile_n": 256})


def best_of(shape: Shape, dtype: DType = DType.FLOAT16) -> BestConfig:
    """A stored winner for a shape."""
    problem = shape.problem(dtype)
    assert problem is not None
    timing = Timing((1.0,), 1.0, 1.0, 1.0, "interleaved")
    provenance = Provenance(
        "0" * 64, "nvrtc 13", "nvidia 580", "sm_90-132sm-150gb-700w", "0.1", "interleaved"
    )
    return BestConfig(
        problem=problem, device_class=RUN["device_class"], arch="sm_90", config=CONFIG, artifact="a" * 64,
        timing=timing, ties=(), baseline=Baseline("cublaslt", 1.0, {}), speedup=1.0, speedup_low=1.0,
        speedup_high=1.0, confidence=0.99, provenance=provenance, resources=Resources(), job_id="job",
    )  # fmt: skip


def row_of(shape: Shape, ours_us: float, best_us: float | None, **changes: Any) -> Row:
    """A row of a recorded suite with these times; torch takes twice as long as ours."""
    ratio = best_us and best_us / ours_us
    problem = best_of(shape).problem
    row = Row(
        m=shape.m, n=shape.n, k=shape.k, dtype="float16", layout=shape.layout.value, ours_us=ours_us,
        cublas_us=None, cublaslt_best_us=best_us, torch_us=2 * ours_us,
        ours_tflops=problem.flops / ours_us / 1e6, ratio_vs_cublaslt_best=ratio, ci_low=ratio, ci_high=ratio,
        config=dict(completed(CONFIG).knobs), family="wgmma", sm_mhz=1500.0, watts=690.0, state="settled",
        accumulate=problem.accumulate.value, group=shape.group, shape=shape.name,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)
