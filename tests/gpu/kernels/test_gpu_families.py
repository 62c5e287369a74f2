"""What every family does alike: configs drawn blindly are right, and Hopper's kernels take every size."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gate
import pytest

from kernels.registry import FAMILIES
from tilewright import Config, GemmProblem
from tuner.measure.operands import bind, make_tensors
from tuner.search.points import valid_points

ANY_ROWS = [
    GemmProblem(333, 777, 555), GemmProblem(64, 1024, 4096, layout="nn"),
    GemmProblem(344, 520, 808, layout="tn"), GemmProblem(333, 777, 555, layout="tt"),
    GemmProblem(1, 4096, 1024, dtype="bfloat16"),
]  # fmt: skip
DOUBLE = GemmProblem(200, 300, 400, dtype="float64", layout="tt")
WHOLE_ROWS = [
    GemmProblem(333, 777, 1024),
    GemmProblem(64, 1024, 4096, layout="nn", acc_dtype="float16"),
    GemmProblem(1000, 1000, 512, layout="tt", dtype="bfloat16", has_bias=True),
]
PROBLEMS: dict[str, list[GemmProblem]] = {
    "mma_sync": [*ANY_ROWS, DOUBLE],
    "simt": [*ANY_ROWS, DOUBLE],
    "wmma": [*ANY_ROWS, GemmProblem(200, 304, 400, acc_dtype="float16")],
    "wgmma": WHOLE_ROWS,
    "wgmma_ws": [
        *WHOLE_ROWS,
        GemmProblem(16, 4096, 4096),
        GemmProblem(1024, 2048, 4096, dtype="float8_e4m3fn", out_dtype="bfloat16"),
    ],
    "gemv": [
        GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336), GemmProblem(8, 4096, 1024, layout="nn"),
        GemmProblem(2048, 3, 1000, dtype="bfloat16", layout="tt"), GemmProblem(7, 4097, 4093),
    ],
    "gemv_tma": [
        GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336), GemmProblem(8, 4096, 1024, dtype="int8"),
        GemmProblem(2048, 3, 1000, dtype="bfloat16"),
        GemmProblem(7, 4104, 4096, dtype="float8_e4m3fn", batch=2),
    ],
}  # fmt: skip
ONE_EACH = [(name, problem) for name, problems in PROBLEMS.items() for problem in problems]


@pytest.mark.parametrize(("name", "problem"), ONE_EACH, ids=str)
def test_heuristic_and_random_valid_configs_are_right(device, name, problem) -> None:
    family = FAMILIES[name]
    if reason := family.why_unsupported(problem, device.spec):
        pytest.skip(reason)
    points = list(valid_points(family, problem, device.spec))
    configs = [family.at(point) for point in random.Random(1).sample(points, min(8, len(points)))]
    for config in family.heuristic_configs(problem, device.spec) + configs:
        assert gate.wrong(device, family, config, problem) is None, str(config)


LAYOUTS = ["nn", "nt", "tn", "tt"]
SIZES = [(8, 8, 8), (8, 264, 72), (128, 128, 64), (136, 248, 200), (304, 520, 1000), (1024, 2304, 2048)]
# The kernel of document 003, and the base config of wgmma_ws.
HOPPERS: dict[str, dict[str, Any]] = {
    "wgmma": {"warpgroups": 1, "stages": 3, "raster": "n", "swizzle_size": 8},
    "wgmma_ws": {"tile_n": 128},
}


def config(name: str, **knobs: Any) -> Config:
    family = FAMILIES[name]
    return family.config(family.knobs_type(**HOPPERS[name] | knobs))


@pytest.fixture(params=HOPPERS)
def wrong(request, hopper) -> Callable[..., str | None]:
    """The reason that a config of a Hopper family, its base with changes, is wrong for a problem."""
    name = request.param
    return lambda problem, **knobs: gate.wrong(hopper, FAMILIES[name], config(name, **knobs), problem)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "extra", [{}, {"dtype": "bfloat16"}, {"acc_dtype": "float16"}], ids=["f16", "bf16", "f16 accumulators"]
)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_hopper_takes_every_size_type_and_layout(wrong, size, extra, layout) -> None:
    """Rows of A and B are multiples of 8 elements; less than a tile, exact, ragged and several tiles."""
    assert wrong(GemmProblem(*size, layout=layout, **extra)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "knobs"), [("wgmma", {}), ("wgmma_ws", {"store_stages": 1})], ids=str)
def test_hopper_gives_float32_results(hopper, name, knobs, layout) -> None:
    problem = GemmProblem(136, 264, 200, layout=layout, out_dtype="float32", has_c=True)
    direct = config(name, epilogue="direct", **knobs)
    assert gate.wrong(hopper, FAMILIES[name], direct, problem) is None


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_batch_of_ragged_matrices_does_not_bleed(wrong, layout) -> None:
    """Boxes that reach past the last row of one matrix must not see the first rows of the next."""
    assert wrong(GemmProblem(40, 72, 24, layout=layout, batch=5)) is None


PINGPONG = {"schedule": "pingpong", "consumers_m": 1}
REDUCE_SCATTER = {"split_k": 4, "reduction": "reduce_scatter"}
REPEATED: list[tuple[str, dict[str, Any]]] = [
    ("wgmma", {"warpgroups": 2, "stages": 2}),
    ("wgmma_ws", {"stages": 2}),
    ("wgmma_ws", {"cluster_m": 2, "stages": 3}),
    ("wgmma_ws", {**PINGPONG, "stages": 3}),
    ("wgmma_ws", {"split_k": 4, "reduction": "kernel"}),
    ("wgmma_ws", {**PINGPONG, "split_k": 4, "reduction": "kernel", "cluster_m": 2}),
    ("wgmma_ws", REDUCE_SCATTER),
    ("wgmma_ws", {**REDUCE_SCATTER, "cluster_m": 2, "cta_order": "gpc"}),
    ("wgmma_ws", {**REDUCE_SCATTER, "tile_n": 256, "stages": 3, "store_stages": 1}),
    ("wgmma_ws", {"reverse_k": 1, "split_k": 4, "reduction": "kernel"}),
    ("wgmma_ws", {"cluster_m": 2, "cta_order": "gpc", "tile_n": 256, "stages": 3, "reverse_k": 1}),
    ("wgmma_ws", {**PINGPONG, "cluster_m": 2, "tile_n": 176, "sector_aligned_store": 1, "store_stages": 4}),
]


@pytest.mark.parametrize(
    ("name", "knobs", "layout"), [(*REPEATED[0], "nn"), *((*one, "nt") for one in REPEATED)], ids=str
)
def test_many_runs_give_the_same_bits(hopper, name, knobs, layout) -> None:
    """A stage refilled or read too early, or a subtile overwritten too early, shows as a rare difference."""
    problem = GemmProblem(1536, 1280, 4096, layout=layout)
    kernel = gate.built(hopper, FAMILIES[name], config(name, **knobs), problem)
    tensors = make_tensors(hopper, problem, 1, "normal")
    launch = bind(hopper, kernel, problem, [tensors]).launches[0]
    launch()
    hopper.synchronize()
    first = tensors.d.copy()
    for _ in range(300):
        tensors.d.fill(0)
        hopper.xp.cuda.get_current_stream().synchronize()
        launch()
        hopper.synchronize()
        assert bool((tensors.d == first).all())
    kernel.close()
