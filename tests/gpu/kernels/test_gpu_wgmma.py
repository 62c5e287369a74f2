"""Family wgmma on a Hopper GPU: every knob, layout and edge, against exact integers and float64."""

from __future__ import annotations

import random

import gate
import pytest

from kernels.compiler.build import build
from kernels.wgmma.family import WGMMA
from tilewright import Config, GemmProblem
from tilewright.launch import load
from tuner.search.points import valid_points

# The kernel of document 003.
BASE = {
    "tile_m": 128, "tile_n": 128, "warpgroups": 1, "tile_k": 64, "stages": 3, "epilogue": "stmatrix",
    "raster": "n", "swizzle_size": 8,
}  # fmt: skip
LAYOUTS = ["nn", "nt", "tn", "tt"]
# Rows of A and B are multiples of 8 elements in every layout; less than a tile, exact, and ragged.
SIZES = [(8, 8, 8), (8, 264, 72), (128, 128, 64), (136, 248, 200), (304, 520, 1000), (512, 384, 2048)]


def wrong(device, problem: GemmProblem, **knobs) -> str | None:
    return gate.wrong(device, WGMMA, Config.of("wgmma", {**BASE, **knobs}), problem)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_size_type_and_layout(hopper, size, dtype, layout) -> None:
    assert wrong(hopper, GemmProblem(*size, dtype=dtype, layout=layout)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_f16_accumulators(hopper, size, layout) -> None:
    assert wrong(hopper, GemmProblem(*size, layout=layout, acc_dtype="float16")) is None


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_results(hopper, layout) -> None:
    problem = GemmProblem(136, 264, 200, layout=layout, out_dtype="float32", has_c=True)
    assert wrong(hopper, problem, epilogue="direct") is None


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_batch_of_ragged_matrices_does_not_bleed(hopper, layout) -> None:
    """Boxes that reach past the last row of one matrix must not see the first rows of the next."""
    assert wrong(hopper, GemmProblem(40, 72, 24, layout=layout, batch=5)) is None


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_many_runs_give_the_same_bits(hopper, layout) -> None:
    """A stage that is refilled too early, or read too early, shows as a rare difference."""
    import cupy

    from tuner.measure.operands import bind, make_tensors

    problem = GemmProblem(1024, 1024, 4096, layout=layout)
    config = Config.of("wgmma", {**BASE, "warpgroups": 2, "stages": 2})
    kernel = load(build(WGMMA, config, problem, hopper.spec))
    tensors = make_tensors(hopper, problem, 1, "normal")
    launch = bind(hopper, kernel, problem, [tensors]).launches[0]
    launch()
    hopper.synchronize()
    first = tensors.d.copy()
    for _ in range(300):
        tensors.d.fill(0)
        cupy.cuda.get_current_stream().synchronize()
        launch()
        hopper.synchronize()
        assert bool((tensors.d == first).all())
    kernel.close()


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(333, 777, 1024),
        GemmProblem(64, 1024, 4096, layout="nn", acc_dtype="float16"),
        GemmProblem(1000, 1000, 512, layout="tt", dtype="bfloat16", has_bias=True),
    ],
    ids=str,
)
def test_heuristic_and_random_valid_configs_are_right(hopper, problem) -> None:
    points = list(valid_points(WGMMA, problem, hopper.spec))
    configs = [WGMMA.at(point) for point in random.Random(1).sample(points, 8)]
    for config in WGMMA.heuristic_configs(problem, hopper.spec) + configs:
        assert wrong(hopper, problem, **dict(config.knobs)) is None, str(config)
