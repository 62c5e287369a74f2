"""``simt`` without shared memory: the source on the CPU, and for which products it is tried."""

from __future__ import annotations

from typing import Any

import pytest
from cpu_kernels import HAS_COMPILER, wrong_on_cpu
from device_samples import H200, gpu
from sweeps import every

from kernels.simt.config import Knobs
from kernels.simt.family import SIMT, is_tiny
from tilewright import GemmProblem

CASES = [
    ("bfloat16", "nt", {"tile_m": 16, "tile_n": 16, "thread_m": 1, "thread_n": 1}),
    ("float64", "tn", {"tile_m": 16, "tile_n": 64, "thread_n": 1}),
    ("int8", "nn", {"tile_m": 64, "tile_n": 16, "thread_m": 1}),
    ("bfloat16", "nn", {"tile_m": 1, "tile_n": 128, "thread_m": 1, "thread_n": 1}),
    ("float32", "tt", {"tile_m": 32, "tile_n": 1, "thread_m": 1, "thread_n": 1}),
    ("float16", "tt", {"tile_m": 16, "tile_n": 16, "thread_n": 2, "split_k": 2}),
]


@pytest.mark.skipif(not HAS_COMPILER, reason="needs g++")
@pytest.mark.parametrize(("dtype", "layout", "knobs"), every(3, CASES))
def test_products_without_shared_memory(dtype: str, layout: str, knobs: dict[str, Any]) -> None:
    problem = GemmProblem(33, 35, 21, dtype=dtype, layout=layout, batch=2)
    config = SIMT.config(Knobs(**knobs, tile_k=8, stages=0))
    assert wrong_on_cpu(SIMT, config, problem, gpu("sm_90"), 0) is None


def test_it_is_tried_for_tiny_products_alone() -> None:
    def stages(*size: int) -> list[Any]:
        configs = SIMT.heuristic_configs(GemmProblem(*size, dtype="bfloat16"), H200)
        return [config["stages"] for config in configs[:2]]

    assert stages(2, 3, 5) == stages(1, 4096, 1) == [0, 0]
    assert stages(64, 64, 64) == stages(1023, 1025, 31) == [2, 2]
    row = SIMT.heuristic_configs(GemmProblem(1, 4096, 1), H200)[0]
    assert (row["tile_m"], row["tile_n"]) == (1, 128)
    assert "a D of one" in (SIMT.why_not_searched(row, GemmProblem(2, 4096, 1), H200) or "")
    column = SIMT.heuristic_configs(GemmProblem(4096, 1, 1), H200)[0]
    assert (column["tile_m"], column["tile_n"]) == (128, 1)
    assert is_tiny(GemmProblem(1, 4096, 1))
    assert not is_tiny(GemmProblem(1, 4096, 33))
    direct = SIMT.config(Knobs(tile_m=16, tile_n=16, thread_n=2, tile_k=8, stages=0))
    assert SIMT.why_not_searched(direct, GemmProblem(2, 3, 5), H200) is None
    assert "reads operands again" in (SIMT.why_not_searched(direct, GemmProblem(64, 64, 64), H200) or "")
