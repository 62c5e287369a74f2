"""Family wmma: every knob at awkward sizes, against exact integers and float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import gate
import pytest
from gpu_samples import EPILOGUES

from kernels.wmma.config import Knobs
from kernels.wmma.family import WMMA
from tilewright import Config, GemmProblem

SIZES = [
    (1, 1, 1), (1, 129, 33), (17, 8, 5), (127, 255, 63), (128, 128, 64), (129, 257, 65), (300, 520, 1000),
]  # fmt: skip
LAYOUTS = ["nn", "nt", "tn", "tt"]
BASE: dict[str, Any] = dataclasses.asdict(Knobs())
BLOCKED = {"tile_m": 128, "tile_n": 128, "smem_layout": "blocked", "snake": 0}
NAIVE = {**BLOCKED, "stages": 1, "copy_bytes": 2}
FOUR_STAGES = {**BLOCKED, "stages": 4}


def wrong(device, knobs: dict[str, int | str], problem: GemmProblem) -> str | None:
    return gate.wrong(device, WMMA, Config.of("wmma", {**BASE, **knobs}), problem)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_wmma_computes_every_size(device, size, dtype, layout) -> None:
    problem = GemmProblem(*size, dtype=dtype, layout=layout)
    assert wrong(device, {}, problem) is None
    assert wrong(device, {"smem_layout": "blocked", "stages": 1}, problem) is None


@pytest.mark.parametrize("kernel", [NAIVE, FOUR_STAGES], ids=["naive", "4-stage"])
@pytest.mark.parametrize("size", [*SIZES, (1344, 1344, 512)], ids=str)
def test_the_kernels_of_document_000(device, size, kernel) -> None:
    assert wrong(device, kernel, GemmProblem(*size)) is None


VARIANTS = [
    *({"stages": x} for x in (1, 2, 4, 6)),
    *({"stages": x, "smem_layout": "blocked"} for x in (1, 2, 5)),
    *({"copy_bytes": x} for x in (2, 4, 8)),
    *({"copy_bytes": x, "stages": 1} for x in (2, 4, 8, 16)),
    *({"split_k": x} for x in (2, 3, 8)),
    *({"split_k": x, "smem_layout": "blocked", "stages": 1} for x in (4, 32)),
    *({"raster": "n", "swizzle_size": x} for x in (2, 16)),
    *({"tile_k": x} for x in (16, 64)),
    {"tile_k": 128, "stages": 2},
    {"snake": 0},
    {"tile_m": 16, "warps_m": 1, "tile_n": 128, "warps_n": 4},
    {"tile_m": 16, "warps_m": 1, "tile_n": 16, "warps_n": 1},
    {"tile_m": 128, "tile_n": 256, "warps_n": 4},
    {"tile_m": 256, "tile_n": 128, "warps_m": 4, "smem_layout": "blocked"},
    {"tile_m": 96, "warps_m": 2},
    {"tile_m": 128, "tile_n": 256, "warps_m": 4, "warps_n": 4},
    {"tile_m": 128, "tile_n": 128, "warps_m": 8, "warps_n": 4},
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_knob_of_wmma(device, variant, layout) -> None:
    for size in ((300, 520, 1000), (129, 257, 65)):
        if layout in ("tn", "tt") and variant.get("tile_m") == 96:
            continue  # rows of 12 chunks do not divide among the threads
        assert wrong(device, variant, GemmProblem(*size, layout=layout)) is None


@pytest.mark.parametrize("smem_layout", ["blocked", "padded"])
@pytest.mark.parametrize("extra", [{}, {"stages": 1}, {"split_k": 4}, {"tile_n": 128, "tile_k": 64}], ids=str)
def test_wmma_accumulates_in_f16(device, extra, smem_layout) -> None:
    for layout in LAYOUTS:
        problem = GemmProblem(300, 520, 1000, acc_dtype="float16", layout=layout)
        assert wrong(device, {"accumulate": "f16", "smem_layout": smem_layout, **extra}, problem) is None


@pytest.mark.parametrize("smem_layout", ["blocked", "padded"])
@pytest.mark.parametrize("size", [(129, 257, 65), (65, 130, 96), (77, 132, 64), (300, 520, 1000)], ids=str)
@pytest.mark.parametrize("extra", EPILOGUES, ids=str)
def test_wmma_epilogues(device, extra, size, smem_layout) -> None:
    """Rows of D of every alignment: odd, 4, 8 and 16 bytes."""
    for split in (1, 4):
        problem = GemmProblem(*size, dtype="bfloat16", **extra)
        assert wrong(device, {"smem_layout": smem_layout, "split_k": split}, problem) is None
