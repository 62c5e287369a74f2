"""The source of ``mma_sync`` on the CPU, against exact integers: maps, swizzles, barriers and waits."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import cpu_kernels
import pytest
from cpu_kernels import HAS_COMPILER, wrong_on_cpu
from device_samples import gpu
from sweeps import every
from type_samples import mma

from kernels.base.spec import SOURCES
from kernels.mma_sync.family import MMA_SYNC
from tilewright import GemmProblem

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="needs g++")
SMALL: dict[str, Any] = {"tile_m": 32, "tile_n": 32, "warps_m": 1, "warps_n": 1, "tile_k": 32}
LAYOUTS = ["nn", "nt", "tn", "tt"]


def wrong(problem: GemmProblem, **knobs: Any) -> str | None:
    """The reason a kernel is wrong with copies made at once or late, or None."""
    device = dataclasses.replace(gpu("sm_80"), smem_per_block=227 << 10)
    config = mma(problem.dtype.value, **SMALL | knobs)
    reasons = (wrong_on_cpu(MMA_SYNC, config, problem, device, seed) for seed in (0, 1))
    return next((reason for reason in reasons if reason), None)


@pytest.mark.parametrize("layout", every(2, LAYOUTS))
def test_every_layout(layout: str) -> None:
    assert wrong(GemmProblem(72, 40, 136, layout=layout), warps_m=2, warps_n=2, tile_m=64, tile_n=32) is None


TRANSPOSED = [
    ("float16", "tn", {"smem_layout": "blocked"}),
    ("float16", "tt", {"smem_layout": "padded", "fragment_load": "direct"}),
    ("bfloat16", "tn", {"smem_layout": "permuted", "fragment_load": "mixed", "tile_m": 64}),
    ("float16", "tt", {"tile_m": 128, "warps_m": 2, "tile_n": 16, "mma_k": 8}),
    ("bfloat16", "tn", {"fragment_load": "ldmatrix_reload", "double_buffer": 0}),
    ("float16", "tt", {"stages": 1, "double_buffer": 0, "warps_k": 2, "split_k": 2}),
    ("tfloat32", "tn", {"tile_k": 16}),
    ("tfloat32", "tt", {"smem_layout": "permuted", "split_k": 2, "tile_k": 16}),
    (
        "tfloat32",
        "tn",
        {"tile_k": 32, "tile_m": 128, "warps_m": 2, "tile_n": 64, "warps_k": 2, "double_buffer": 0},
    ),
    ("tfloat32", "tn", {"tile_k": 16, "tile_m": 64, "tile_n": 16}),
    ("tfloat32", "tn", {"tile_k": 16, "smem_layout": "padded", "epilogue": "direct", "tile_m": 64}),
    ("tfloat32", "tt", {"tile_k": 16, "smem_layout": "blocked", "tile_m": 128, "warps_m": 2}),
    ("tfloat32", "tn", {"tile_k": 16, "fragment_load": "direct", "warps_n": 4, "tile_m": 64}),
    ("float64", "tn", {"tile_k": 8, "smem_layout": "padded", "epilogue": "direct"}),
    ("float64", "tt", {"tile_k": 8}),
]


@pytest.mark.parametrize(("dtype", "layout", "knobs"), every(8, TRANSPOSED))
def test_a_stored_k_by_m(dtype: str, layout: str, knobs: dict[str, Any]) -> None:
    assert wrong(GemmProblem(45, 37, 85, dtype=dtype, layout=layout, batch=2, has_bias=True), **knobs) is None


OTHERS = [
    ("float16", "nn", {"copy_bytes": 8, "stages": 4}),
    ("float16", "nt", {"warps_k": 2, "split_k": 3, "tile_k": 64}),
    ("bfloat16", "nt", {"tile_n": 96, "accumulate": "f32_outside", "double_buffer": 0}),
    ("int8", "nt", {"tile_k": 64, "fragment_load": "mixed", "stages": 2}),
    ("uint8", "nt", {"tile_k": 64, "fragment_load": "direct"}),
    ("float16", "nt", {"fragment_load": "ldmatrix_x2", "smem_layout": "plain"}),
    ("float16", "nt", {"fragment_load": "ldmatrix_reload", "double_buffer": 0}),
    ("float16", "nt", {"tile_n": 8, "smem_layout": "plain", "epilogue": "direct"}),
    ("float16", "nt", {"tile_n": 8, "fragment_load": "direct", "smem_layout": "plain"}),
    ("float16", "nn", {"copy_bytes": 2, "smem_layout": "plain", "stages": 1, "double_buffer": 0}),
    ("bfloat16", "nt", {"copy_step": 1, "stages": 4, "double_buffer": 0}),
    ("tfloat32", "nn", {"tile_k": 16}),
    ("float64", "nn", {"tile_k": 8, "stages": 2}),
]


@pytest.mark.parametrize(("dtype", "layout", "knobs"), every(7, OTHERS))
def test_a_stored_m_by_k(dtype: str, layout: str, knobs: dict[str, Any]) -> None:
    assert wrong(GemmProblem(45, 37, 85, dtype=dtype, layout=layout, has_c=True), **knobs) is None


REPACKED = [
    ("float16", "nt", {}),
    ("float16", "nn", {"split_k": 3, "tile_k": 64}),
    ("float16", "tn", {"stages": 4}),
    ("bfloat16", "tt", {"split_k": 2}),
    ("tfloat32", "nn", {"tile_k": 16, "split_k": 2}),
    ("float64", "nt", {"tile_k": 8}),
    ("int8", "nt", {"tile_k": 64, "split_k": 2}),
]


@pytest.mark.parametrize(("dtype", "layout", "knobs"), every(6, REPACKED))
def test_rows_are_repacked(dtype: str, layout: str, knobs: dict[str, Any]) -> None:
    problem = GemmProblem(45, 37, 333, dtype=dtype, layout=layout, batch=2)
    assert wrong(problem, repack=1, **knobs) is None


NARROW = [
    (41, None, {}),
    (42, "float32", {}),
    (44, None, {"tile_m": 16, "tile_n": 16}),
    (97, None, {"tile_m": 64, "tile_n": 96, "warps_m": 2, "warps_n": 2}),
    (30, None, {"tile_m": 96, "tile_n": 16, "warps_m": 2, "warps_n": 2, "warps_k": 2, "tile_k": 64}),
    (9, None, {"tile_m": 128, "tile_n": 16, "warps_m": 8}),
]


@pytest.mark.parametrize(("n", "out", "knobs"), every(3, NARROW))
def test_rows_of_d_are_not_aligned(n: int, out: str | None, knobs: dict[str, Any]) -> None:
    assert wrong(GemmProblem(70, n, 40, dtype="bfloat16", out_dtype=out), **knobs) is None


# A change of the sources, and what becomes wrong by it.
FAULTS = [
    ("mma_sync/compute.cuh", "cfg::a_transposed ? lane() / 16 * 8 + lane() % 8 :", "", "differ"),
    ("mma_sync/kernel.cu", "cp_async_wait<cfg::stages - 2>();", "", "differ"),
    (
        "mma_sync/kernel.cu",
        "wait<cfg::stages - 2>();\n                __syncthreads();",
        "wait<0>();",
        "differ",
    ),
    ("common/smem_tile.cuh", "row + first_row()) >= zeros;", "row + first_row()) >= 0;", "out of bounds"),
    ("common/smem_tile.cuh", "min(row, rows_left)", "row", "out of bounds"),
]


@pytest.mark.parametrize(("source", "before", "after", "what"), every(3, FAULTS))
def test_a_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, before: str, after: str, what: str
) -> None:
    shutil.copytree(
        SOURCES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    text = (tmp_path / source).read_text()
    assert before in text
    (tmp_path / source).write_text(text.replace(before, after))
    monkeypatch.setattr(cpu_kernels, "SOURCES", tmp_path)
    monkeypatch.setattr(cpu_kernels, "_LOADED", {})
    problem = GemmProblem(60, 30, 232, layout="tt")
    assert what in (wrong(problem, tile_m=64, warps_m=2, warps_n=2, stages=2) or "")
