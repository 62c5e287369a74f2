"""Family wgmma on a Hopper GPU: every knob, layout and edge, against exact integers and float64."""

from __future__ import annotations

import dataclasses

import gate
import pytest

from kernels.wgmma.config import Knobs
from kernels.wgmma.family import WGMMA
from tilewright import Config, GemmProblem

# The kernel of document 003.
BASE = dataclasses.asdict(Knobs(warpgroups=1, stages=3, raster="n", swizzle_size=8))
LAYOUTS = ["nn", "nt", "tn", "tt"]


def wrong(device, problem: GemmProblem, **knobs) -> str | None:
    return gate.wrong(device, WGMMA, Config.of("wgmma", {**BASE, **knobs}), problem)


@pytest.mark.parametrize("epilogue", ["direct", "stmatrix"])
@pytest.mark.parametrize("size", [(1, 1, 8), (1, 7, 64), (129, 257, 72), (301, 523, 1000)], ids=str)
def test_odd_m_and_n(hopper, size, epilogue) -> None:
    """With B stored N x K, m and n are free: D then has rows that allow no wide stores."""
    assert wrong(hopper, GemmProblem(*size), epilogue=epilogue) is None
    assert wrong(hopper, GemmProblem(*size, acc_dtype="float16"), epilogue=epilogue) is None


VARIANTS = [
    {"tile_m": 64},
    {"tile_m": 64, "tile_n": 256, "stages": 5},
    {"warpgroups": 2},
    {"warpgroups": 2, "tile_n": 256, "stages": 4},
    {"warpgroups": 2, "tile_m": 256, "stages": 4},
    {"warpgroups": 4, "tile_m": 256, "tile_n": 64},
    {"warpgroups": 3, "tile_m": 192},
    {"tile_m": 192, "tile_n": 64},
    {"tile_k": 128},
    {"tile_k": 128, "warpgroups": 2},
    *({"stages": x} for x in (2, 3, 6)),
    {"tile_m": 64, "tile_n": 64, "stages": 8},
    {"epilogue": "direct"},
    {"epilogue": "direct", "warpgroups": 2, "tile_m": 256},
    {"box_lines": 8, "arrivals": "threads"},
    {"box_lines": 8, "warpgroups": 2, "tile_k": 128},
    *({"raster": x, "swizzle_size": y} for x in "mn" for y in (1, 2, 16)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_knob(hopper, variant, layout) -> None:
    for size in ((136, 264, 72), (520, 776, 1000)):
        assert wrong(hopper, GemmProblem(*size, layout=layout), **variant) is None


@pytest.mark.parametrize("tile_n", range(16, 257, 16))
def test_every_width(hopper, tile_n) -> None:
    for epilogue in ("direct", "stmatrix"):
        knobs = {"tile_m": 64, "tile_n": tile_n, "epilogue": epilogue}
        assert wrong(hopper, GemmProblem(136, 520, 200), **knobs) is None
        assert wrong(hopper, GemmProblem(136, 520, 200, acc_dtype="float16"), **knobs) is None


EPILOGUES = [
    {"has_bias": True, "activation": "relu"},
    {"has_c": True, "has_bias": True, "activation": "gelu"},
    {"batch": 3},
    {"batch": 2, "has_c": True},
]


@pytest.mark.parametrize("epilogue", ["direct", "stmatrix"])
@pytest.mark.parametrize("size", [(129, 257, 72), (304, 520, 1000)], ids=str)
@pytest.mark.parametrize("extra", EPILOGUES, ids=str)
def test_epilogues_and_batches(hopper, extra, size, epilogue) -> None:
    problem = GemmProblem(*size, dtype="bfloat16", **extra)
    assert wrong(hopper, problem, epilogue=epilogue, warpgroups=2) is None
