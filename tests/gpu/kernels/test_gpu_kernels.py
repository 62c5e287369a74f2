"""Every knob of the CUDA families at awkward sizes, against exact integers and float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from gate import wrong
from gpu_samples import EPILOGUES
from type_samples import mma as typed

from kernels.compiler.build import build
from kernels.mma_sync.config import Knobs as MmaKnobs
from kernels.mma_sync.family import MMA_SYNC
from kernels.simt.config import Knobs as SimtKnobs
from kernels.simt.family import SIMT
from tilewright import Config, GemmProblem
from tilewright.launch import load

SIZES = [
    (1, 1, 1), (1, 129, 33), (17, 8, 5), (127, 255, 63), (128, 128, 64), (129, 257, 65), (300, 520, 1000),
]  # fmt: skip
BASE: dict[str, Any] = dataclasses.asdict(MmaKnobs())


def mma(**knobs) -> Config:
    return Config.of("mma_sync", {**BASE, **knobs})


LAYOUTS = ["nn", "nt", "tn", "tt"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_mma_sync_computes_every_size(device, size, dtype, layout) -> None:
    assert wrong(device, MMA_SYNC, mma(), GemmProblem(*size, dtype=dtype, layout=layout)) is None


VARIANTS = [
    *({"smem_layout": x} for x in ("blocked", "padded", "permuted")),
    *({"fragment_load": x} for x in ("direct", "mixed")),
    *({"stages": x, "double_buffer": 0} for x in (1, 2, 6)),
    *({"stages": x} for x in (2, 4)),
    *({"copy_bytes": x} for x in (2, 4, 8)),
    *({"split_k": x} for x in (2, 3, 8)),
    *({"raster": "n", "swizzle_size": x} for x in (2, 16)),
    {"mma_k": 8},
    {"mma_k": 8, "fragment_load": "direct", "smem_layout": "blocked"},
    {"accumulate": "f32_outside"},
    {"epilogue": "direct"},
    {"snake": 0},
    {"warps_k": 2},
    {"warps_k": 4, "double_buffer": 0, "warps_m": 1},
    {"tile_k": 16, "double_buffer": 0},
    {"tile_k": 128, "stages": 2, "warps_k": 2},
    {"tile_m": 16, "warps_m": 1, "tile_n": 128, "warps_n": 4},
    {"tile_m": 128, "tile_n": 256, "warps_n": 4, "tile_k": 32},
    {"tile_m": 256, "tile_n": 128, "warps_m": 4, "tile_k": 32},
    {"tile_m": 96},
    {"split_k": 4, "warps_k": 2, "epilogue": "direct"},
    {"min_ctas_per_sm": 2},
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_knob_of_mma_sync(device, variant, layout) -> None:
    for size in ((300, 520, 1000), (129, 257, 65)):
        problem = GemmProblem(*size, layout=layout)
        if layout in ("tn", "tt") and variant.get("tile_m") == 96:
            continue  # rows of 12 chunks do not divide among the threads
        assert wrong(device, MMA_SYNC, mma(**variant), problem) is None


OF_THE_DOCUMENTS = [
    {"fragment_load": "ldmatrix_x2"},
    {"fragment_load": "ldmatrix_x2", "smem_layout": "plain", "stages": 1, "double_buffer": 0},
    {"fragment_load": "ldmatrix_reload", "double_buffer": 0},
    {"tile_n": 8, "warps_n": 1, "smem_layout": "plain", "epilogue": "direct"},
    {"copy_bytes": 2, "smem_layout": "plain", "stages": 1, "double_buffer": 0},
    {"copy_step": 1, "stages": 4, "double_buffer": 0},
]  # fmt: skip


@pytest.mark.parametrize("variant", OF_THE_DOCUMENTS, ids=str)
def test_knobs_of_the_reference_kernels(device, variant) -> None:
    for size in ((300, 520, 1000), (129, 257, 65)):
        assert wrong(device, MMA_SYNC, mma(**variant), GemmProblem(*size)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "tfloat32", "float64"])
@pytest.mark.parametrize("split_k", [1, 3])
def test_mma_sync_repacks_rows(device, layout, dtype, split_k) -> None:
    for size in ((129, 257, 65), (127, 255, 1001)):
        problem = GemmProblem(*size, dtype=dtype, layout=layout, batch=2)
        assert wrong(device, MMA_SYNC, typed(dtype, repack=1, split_k=split_k), problem) is None


@pytest.mark.parametrize("tile_n", [96, 160, 192])
def test_mma_sync_tiles_that_are_no_power_of_two(device, tile_n) -> None:
    """With B stored N x K only: rows of 20 or 24 chunks do not divide among the threads."""
    assert wrong(device, MMA_SYNC, mma(tile_n=tile_n, warps_n=2), GemmProblem(300, 520, 1000)) is None


@pytest.mark.parametrize("variant", [{}, {"mma_k": 8}, {"split_k": 4}, {"warps_k": 2}], ids=str)
def test_mma_sync_accumulates_in_f16(device, variant) -> None:
    problem = GemmProblem(300, 520, 1000, acc_dtype="float16")
    assert wrong(device, MMA_SYNC, mma(accumulate="f16", **variant), problem) is None


@pytest.mark.parametrize("epilogue", ["direct", "smem"])
@pytest.mark.parametrize("size", [(129, 257, 65), (300, 520, 1000)], ids=str)
@pytest.mark.parametrize("extra", EPILOGUES, ids=str)
def test_mma_sync_epilogues(device, extra, size, epilogue) -> None:
    for split in (1, 4):
        problem = GemmProblem(*size, dtype="bfloat16", **extra)
        assert wrong(device, MMA_SYNC, mma(epilogue=epilogue, split_k=split), problem) is None


def test_a_cta_of_mma_sync_may_have_all_shared_memory(hopper) -> None:
    """2 x (96 rows of 1040 bytes, and 512 of 32) are 227 KiB; with splits of k their flag is beyond that."""
    knobs = {
        "tile_m": 96, "tile_n": 8, "tile_k": 512, "stages": 2, "smem_layout": "padded", "warps_n": 1,
        "double_buffer": 0, "epilogue": "direct", "fragment_load": "direct",
    }  # fmt: skip
    problem = GemmProblem(300, 520, 3000, layout="nn")
    assert MMA_SYNC.plan(mma(**knobs), problem, hopper.spec).dynamic_smem == hopper.spec.smem_per_block
    assert wrong(hopper, MMA_SYNC, mma(**knobs), problem) is None
    split = mma(**knobs, split_k=2)
    assert "shared memory" in (MMA_SYNC.why_invalid(split, problem, hopper.spec) or "")


SIMT_BASE: dict[str, Any] = dataclasses.asdict(SimtKnobs())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_simt_computes_every_type_and_layout(device, dtype, layout) -> None:
    for size in ((1, 1, 1), (65, 127, 33), (300, 520, 100)):
        problem = GemmProblem(*size, dtype=dtype, layout=layout, has_bias=True)
        assert wrong(device, SIMT, Config.of("simt", SIMT_BASE), problem) is None


@pytest.mark.parametrize(
    "variant",
    [
        {"stages": 1},
        {"split_k": 4},
        {"tile_m": 128, "tile_n": 128, "thread_m": 8, "thread_n": 8},
        {"tile_k": 8, "raster": "n", "swizzle_size": 4},
        {"tile_m": 16, "tile_n": 128, "split_k": 8},
    ],
    ids=str,
)
def test_every_knob_of_simt(device, variant) -> None:
    problem = GemmProblem(257, 300, 1000, dtype="float32", batch=2, has_c=True, activation="gelu")
    assert wrong(device, SIMT, Config.of("simt", {**SIMT_BASE, **variant}), problem) is None


def test_a_wrong_kernel_is_caught(device) -> None:
    """A kernel built for another swizzle size writes the wrong tiles."""
    problem = GemmProblem(256, 256, 128)
    from tuner.measure.correctness import check

    artifact = build(MMA_SYNC, mma(), problem, device.spec)
    half = dataclasses.replace(artifact.plan.grid, tile_n=128)
    broken = dataclasses.replace(artifact, plan=dataclasses.replace(artifact.plan, grid=half))
    assert "never written" in (check(device, load(broken), problem) or "")
