"""Family wgmma_ws on a Hopper GPU: every knob, layout and edge, against exact integers and float64."""

from __future__ import annotations

import dataclasses

import gate
import pytest
from gpu_samples import WGMMA_WS_BASE as BASE

from kernels.wgmma_ws.config import L2_HINTS
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, GemmProblem

PINGPONG = {"schedule": "pingpong", "consumers_m": 1}
SWAPPED = {"swap_ab": 1, "tile_m": 64, "consumers_m": 1, "consumers_n": 2}
REDUCE_SCATTER = {"split_k": 4, "reduction": "reduce_scatter"}
SMALL = {"tile_m": 64, "tile_n": 64, "consumers_m": 1}
LAYOUTS = ["nn", "nt", "tn", "tt"]


def wrong(device, problem: GemmProblem, **knobs) -> str | None:
    return gate.wrong(device, WGMMA_WS, Config.of("wgmma_ws", {**BASE, **knobs}), problem)


@pytest.fixture
def short_timeout(monkeypatch) -> None:
    do_not_wait(monkeypatch)


def do_not_wait(monkeypatch) -> None:
    """Compiles kernels whose CTAs do not wait for each other at a semaphore from now on."""
    patient = WGMMA_WS.build_spec

    def build_spec(*asked):
        spec = patient(*asked)
        return dataclasses.replace(spec, defines=(*spec.defines, ("SEMAPHORE_CLOCKS", 0)))

    monkeypatch.setattr(WGMMA_WS, "build_spec", build_spec)


@pytest.mark.parametrize("epilogue", ["direct", "stmatrix"])
@pytest.mark.parametrize("store_stages", [1, 2])
@pytest.mark.parametrize("size", [(1, 1, 8), (1, 7, 64), (129, 257, 72), (301, 523, 1000)], ids=str)
def test_odd_m_and_n(hopper, size, epilogue, store_stages) -> None:
    """With B stored N x K, m and n are free: D then has rows that allow no wide stores."""
    knobs = {"epilogue": epilogue, "store_stages": 1 if epilogue == "direct" else store_stages}
    assert wrong(hopper, GemmProblem(*size), **knobs) is None
    swapped = {**knobs, "swap_ab": 1, "tile_m": 24, "consumers_m": 1, "consumers_n": 2}
    assert wrong(hopper, GemmProblem(*size), **swapped) is None


VARIANTS = [
    {"tile_n": 256},
    {"tile_m": 256},
    {"tile_m": 192, "consumers_m": 3},
    {"tile_m": 64, "consumers_m": 1, "tile_n": 256},
    {"tile_m": 64, "consumers_m": 1, "consumers_n": 2},
    {"tile_m": 192, "consumers_m": 1, "consumers_n": 2},
    {"tile_k": 128, "stages": 3},
    *({"stages": x} for x in (2, 3, 6)),
    {"epilogue": "direct", "store_stages": 1},
    *({"epilogue": x, "store_stages": y} for x in ("stmatrix", "tma") for y in (1, 2, 4)),
    *({"cluster_m": x, "cluster_n": y} for x, y in ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4))),
    *({"l2_hints": x} for x in L2_HINTS),
    *({"prefetch": x} for x in (2, 4, 32)),
    *({"cluster_m": x, "cluster_n": y} for x, y in ((4, 2), (2, 4))),
    {"cluster_k": 2, "cluster_m": 2, "cluster_n": 2},
    {"prefetch": 8, "cluster_m": 2, "cluster_n": 2},
    {**PINGPONG, "prefetch": 4, "cluster_m": 2},
    {"cluster_k": 2},
    {"cluster_k": 2, "cluster_n": 2, "tile_m": 64, "tile_n": 64, "consumers_m": 1},
    {"cluster_k": 2, "cluster_m": 2, "tile_m": 256, "stages": 2},
    {"cluster_k": 2, "epilogue": "direct", "store_stages": 1},
    {"cluster_k": 2, "split_k": 2, "reduction": "kernel"},
    {**PINGPONG, "cluster_k": 2},
    {**SWAPPED, "cluster_k": 2},
    {**SWAPPED, "cluster_k": 2, "split_k": 3, "reduction": "kernel"},
    *({"split_k": x, "reduction": "kernel"} for x in (2, 3, 8, 32)),
    {"split_k": 3, "reduction": "kernel", "cluster_m": 2},
    *({"split_k": x, "reduction": "reduce_scatter"} for x in (2, 4, 8, 16)),
    {**REDUCE_SCATTER, "cluster_m": 2, "cluster_n": 2},
    {"split_k": 3, "reduction": "reduce_scatter", "tile_n": 192, "epilogue": "stmatrix", "store_stages": 1},
    {"split_k": 2, "reduction": "reduce_scatter", "epilogue": "direct", "store_stages": 1},
    {**REDUCE_SCATTER, "split_k": 8, "consumers_m": 1, "store_stages": 1},
    {"split_k": 3, "reduction": "kernel", "cluster_n": 2},
    PINGPONG,
    {**PINGPONG, "tile_m": 64, "tile_n": 256},
    {**PINGPONG, "tile_n": 192},
    {**PINGPONG, "split_k": 4, "reduction": "kernel"},
    {**PINGPONG, **REDUCE_SCATTER},
    {**PINGPONG, "cluster_m": 2, "epilogue": "stmatrix"},
    {**PINGPONG, "cluster_n": 2, "epilogue": "direct", "store_stages": 1},
    SWAPPED,
    {**SWAPPED, "split_k": 4, "reduction": "kernel", "cluster_n": 2},
    {**SWAPPED, "split_k": 4, "reduction": "kernel"},
    {**SWAPPED, **REDUCE_SCATTER},
    {**SWAPPED, "tile_k": 128, "stages": 3, "epilogue": "stmatrix"},
    {**SWAPPED, "epilogue": "direct", "store_stages": 1},
    {"reverse_k": 1, **SMALL},
    {"reverse_k": 1, **SMALL, "cluster_m": 2, "cluster_n": 2, "prefetch": 4},
    {"reverse_k": 1, **SMALL, "cluster_k": 2},
    {"reverse_k": 1, **PINGPONG, "tile_m": 64, "tile_n": 64, "stages": 7},
    {"reverse_k": 1, "split_k": 3, "reduction": "kernel"},
    *({"cta_order": "gpc", "tile_n": 256, "stages": 3, **x} for x in ({"cluster_m": 2}, {"cluster_n": 2})),
    {"cta_order": "gpc", "cluster_m": 2, "tile_n": 256, "stages": 3, "reverse_k": 1},
    {"cta_order": "gpc", **PINGPONG, "cluster_m": 2, "tile_n": 192},
    *({"raster": x, "swizzle_size": y, "snake": z} for x in "mn" for y in (1, 4) for z in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_knob(hopper, variant, layout) -> None:
    for size in ((136, 264, 72), (1160, 1544, 1000)):
        assert wrong(hopper, GemmProblem(*size, layout=layout), **variant) is None


@pytest.mark.parametrize("tile_n", range(8, 257, 8))
def test_every_width(hopper, tile_n) -> None:
    for epilogue in ("direct", "tma"):
        knobs = {"tile_n": tile_n, "epilogue": epilogue, "store_stages": 1}
        assert wrong(hopper, GemmProblem(136, 520, 200), **knobs) is None
        assert wrong(hopper, GemmProblem(136, 520, 200, acc_dtype="float16"), **knobs) is None


@pytest.mark.parametrize(("tile_n", "cluster_m"), [(168, 2), (144, 4), (72, 2), (8, 4)])
@pytest.mark.parametrize("schedule", [{}, PINGPONG], ids=["cooperative", "pingpong"])
def test_widths_that_a_cluster_loads_in_turns(hopper, tile_n, cluster_m, schedule) -> None:
    knobs = {**schedule, "tile_n": tile_n, "cluster_m": cluster_m, "epilogue": "direct", "store_stages": 1}
    for size in ((136, 520, 200), (1160, 1544, 1000)):
        assert wrong(hopper, GemmProblem(*size), **knobs) is None


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_rows_that_a_cluster_cannot_slice(hopper, layout) -> None:
    """16 rows for four CTAs."""
    knobs = {**SWAPPED, "tile_m": 16, "cluster_n": 4}
    for size in ((136, 264, 72), (1160, 1544, 1000)):
        assert wrong(hopper, GemmProblem(*size, layout=layout), **knobs) is None


@pytest.mark.parametrize("tile_m", [8, 16, 24, 32, 48, 64, 96])
@pytest.mark.parametrize("epilogue", ["direct", "stmatrix", "tma"])
def test_every_width_of_a_transposed_tile(hopper, tile_m, epilogue) -> None:
    knobs = {**SWAPPED, "tile_m": tile_m, "epilogue": epilogue, "store_stages": 1}
    assert wrong(hopper, GemmProblem(tile_m + 3, 520, 200), **knobs) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1, 1, 1), (7, 5, 3), (129, 257, 71), (301, 523, 1001)], ids=str)
def test_rows_that_tma_cannot_take_are_repacked(hopper, size, layout) -> None:
    for batch in (1, 3):
        assert wrong(hopper, GemmProblem(*size, layout=layout, batch=batch), epilogue="stmatrix") is None
    eights = {"tile_k": 128, "epilogue": "direct", "store_stages": 1}
    if layout == "nt":
        assert wrong(hopper, GemmProblem(*size, dtype="int8", batch=2), **eights) is None


@pytest.mark.parametrize(
    "variant",
    [
        REDUCE_SCATTER,
        {**REDUCE_SCATTER, "split_k": 8, "epilogue": "stmatrix", "store_stages": 1},
        {**REDUCE_SCATTER, "consumers_m": 1, "store_stages": 4},
        {**REDUCE_SCATTER, "tile_n": 256, "stages": 3, "store_stages": 1},
        {**PINGPONG, **REDUCE_SCATTER},
        {**SWAPPED, **REDUCE_SCATTER, "cluster_n": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("extra", [{}, {"acc_dtype": "float16"}, {"batch": 2, "has_c": True}], ids=str)
@pytest.mark.usefixtures("short_timeout")
def test_the_last_cta_finishes_the_slices_of_those_that_time_out(hopper, extra, variant) -> None:
    assert wrong(hopper, GemmProblem(301, 1544, 1000, **extra), **variant) is None


@pytest.mark.parametrize(
    "variant",
    [{"cluster_k": 2}, {**PINGPONG, "cluster_k": 2}, {"split_k": 8, "reduction": "kernel"}, REDUCE_SCATTER],
    ids=str,
)
def test_ctas_without_a_k_tile(hopper, variant) -> None:
    """One k tile for several CTAs: the accumulators of the others must not count. Several tiles a CTA."""
    for k in (8, 64, 136):
        assert wrong(hopper, GemmProblem(2560, 2304, k), **variant) is None


@pytest.mark.parametrize(
    ("tile_n", "epilogue"), [(176, "stmatrix"), (192, "stmatrix"), (120, "tma"), (192, "tma")]
)
@pytest.mark.parametrize("store_stages", [1, 2, 4])
@pytest.mark.parametrize("has_c", [False, True])
def test_staging_that_a_tile_does_not_fill_evenly(hopper, tile_n, epilogue, store_stages, has_c) -> None:
    """Short k, many tiles: the first subtile of a tile must not overwrite the last of the tile before."""
    knobs = {"tile_n": tile_n, "epilogue": epilogue, "store_stages": store_stages, "stages": 3}
    for _ in range(3):
        assert wrong(hopper, GemmProblem(8192, 8448, 64, has_c=has_c), **knobs) is None


@pytest.mark.parametrize("tile_n", [24, 56, 72, 88, 104, 144, 176])
@pytest.mark.parametrize("store_stages", [2, 4])
@pytest.mark.parametrize(("epilogue", "has_c"), [("tma", False), ("tma", True), ("overlapped", False)])
def test_tiles_of_few_wide_subtiles(hopper, tile_n, store_stages, epilogue, has_c) -> None:
    knobs = {"tile_n": tile_n, "epilogue": epilogue, "store_stages": store_stages, "stages": 3}
    for size in ((136, 520, 200), (4104, 4360, 64)):
        assert wrong(hopper, GemmProblem(*size, has_c=has_c), **knobs) is None


LOADS_OF_C = [
    {},
    {"store_stages": 1},
    {"tile_n": 256, "store_stages": 4, "stages": 3},
    {**PINGPONG, "tile_n": 96, "store_stages": 4, "stages": 3},
    {**PINGPONG, "tile_n": 120, "store_stages": 2},
    {"tile_m": 192, "consumers_m": 3, "tile_n": 128, "stages": 3},
    {"tile_n": 128, "cluster_k": 2},
    {**PINGPONG, "tile_n": 64, "cluster_k": 2},
    {"tile_n": 160, "sector_aligned_store": 1, "store_stages": 4, "stages": 3},
    {"cluster_m": 2, "cta_order": "gpc"},
    {**SWAPPED, "tile_m": 128, "store_stages": 4},  # whose threads load it
]


@pytest.mark.parametrize("variant", LOADS_OF_C, ids=str)
@pytest.mark.parametrize("k", [8, 64, 1000])
def test_tma_loads_c_ahead(hopper, variant, k) -> None:
    """Several tiles a CTA, some of them outside D; a k tile, several, and none where two CTAs share one."""
    for extra in ({"batch": 3}, {"batch": 2, "has_bias": True, "activation": "gelu"}):
        problem = GemmProblem(1160, 1544, k, dtype="bfloat16", has_c=True, **extra)
        assert wrong(hopper, problem, **{"tile_n": 128, **variant}) is None


@pytest.mark.parametrize("tile_n", [112, 144, 160, 208, 240])
@pytest.mark.parametrize("variant", [{}, {"epilogue": "overlapped", "swizzle_size": 16}, PINGPONG], ids=str)
def test_sector_aligned_subtiles(hopper, tile_n, variant) -> None:
    if variant is PINGPONG and tile_n == 240:
        tile_n = 176
    knobs = {**variant, "tile_n": tile_n, "store_stages": 4, "stages": 3, "sector_aligned_store": 1}
    for size in ((136, 520, 200), (4104, 4360, 64)):
        assert wrong(hopper, GemmProblem(*size), **knobs) is None


OVERLAPPED = [
    {},
    {"store_stages": 1},
    {"store_stages": 4, "tile_n": 120},
    {"tile_n": 256, "cluster_m": 2},
    {"tile_m": 256, "cluster_n": 2},
    {"tile_n": 168, "cluster_m": 2},
    {"tile_m": 192, "consumers_m": 3, "tile_n": 160, "stages": 3},
    {"consumers_m": 1, "tile_n": 128},
    {"tile_m": 64, "consumers_m": 1, "consumers_n": 2, "tile_n": 256},
    SWAPPED,
]


@pytest.mark.parametrize("variant", OVERLAPPED, ids=str)
@pytest.mark.parametrize("k", [8, 64, 1000])
def test_a_tile_whose_store_overlaps_the_next(hopper, variant, k) -> None:
    """Several tiles a CTA, with fewer and with more k tiles than a tile has subtiles."""
    for problem in (GemmProblem(2568, 2312, k), GemmProblem(1160, 1544, k, dtype="bfloat16", batch=3)):
        assert wrong(hopper, problem, **variant, epilogue="overlapped") is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_overlapped_store_has_its_own_bias(hopper, layout) -> None:
    problem = GemmProblem(2568, 2312, 200, layout=layout, batch=2, has_bias=True, activation="relu")
    assert wrong(hopper, problem, epilogue="overlapped") is None
    halves = GemmProblem(2568, 2312, 200, layout=layout, acc_dtype="float16")
    assert wrong(hopper, halves, tile_n=256, epilogue="overlapped") is None


EXTRAS = [
    {"has_bias": True, "activation": "relu"},
    {"has_c": True, "has_bias": True, "activation": "gelu"},
    {"batch": 3},
    {"batch": 2, "has_c": True},
]


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {**PINGPONG, "tile_n": 64},
        SWAPPED,
        {"split_k": 2, "reduction": "kernel"},
        {"split_k": 2, "reduction": "reduce_scatter"},
        {"cluster_m": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(136, 264, 72), (304, 520, 1000)], ids=str)
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_epilogues_and_batches(hopper, extra, size, variant) -> None:
    problem = GemmProblem(*size, dtype="bfloat16", **extra)
    for epilogue in ("direct", "stmatrix", "tma"):
        knobs = {**variant, "epilogue": epilogue, "store_stages": 1}
        assert wrong(hopper, problem, **knobs) is None


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {**PINGPONG, "tile_n": 64},
        SWAPPED,
        {"split_k": 2, "reduction": "kernel", "tile_n": 64},
        {**REDUCE_SCATTER, "tile_n": 64},
        {"cluster_m": 2},
    ],
    ids=str,
)
def test_8_bit_types(hopper, dtype, variant) -> None:
    promote = int(dtype == "float8_e4m3fn")
    for size in ((16, 16, 16), (304, 528, 1008)):
        knobs = {**variant, "tile_k": 128, "epilogue": "direct", "store_stages": 1, "promote": promote}
        assert wrong(hopper, GemmProblem(*size, dtype=dtype), **knobs) is None


@pytest.mark.parametrize("promote", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    "variant",
    [{}, {**PINGPONG, "tile_n": 64}, {"split_k": 2, "reduction": "kernel"}, {**REDUCE_SCATTER, "tile_n": 64}],
    ids=str,
)
def test_promoted_accumulators(hopper, dtype, variant, promote) -> None:
    for size in ((16, 16, 16), (304, 528, 4080)):
        for has_c in (False, True):
            problem = GemmProblem(*size, dtype=dtype, out_dtype="bfloat16", has_c=has_c)
            assert wrong(hopper, problem, **variant, tile_k=128, promote=promote) is None


@pytest.mark.parametrize(
    "variant", [REDUCE_SCATTER, {**REDUCE_SCATTER, "cluster_m": 2}, {**PINGPONG, **REDUCE_SCATTER}], ids=str
)
@pytest.mark.parametrize("ring", [{"stages": 2}, {}], ids=str)
def test_reduce_scatter_whatever_the_ring_holds(hopper, variant, ring) -> None:
    """Splits of no, one, a few and many k tiles; several work tiles a CTA."""
    for size in ((2560, 2304, 8), (2560, 2304, 520), (1024, 1024, 3000)):
        assert wrong(hopper, GemmProblem(*size), **variant, **ring) is None


def launched(device, problem: GemmProblem, **knobs):
    """D of a second launch on operands of N(0, 1), and its time in us."""
    from tuner.measure.operands import bind, make_tensors

    kernel = gate.built(device, WGMMA_WS, Config.of("wgmma_ws", {**BASE, **knobs}), problem)
    tensors = make_tensors(device, problem, 1, "normal")
    bound = bind(device, kernel, problem, [tensors])
    device.synchronize()  # operands are there
    device.once(bound.launches[0])
    us = device.once(bound.launches[0])
    found = tensors.d.copy()
    device.synchronize()
    kernel.close()
    return found, us


@pytest.mark.parametrize(
    "variant",
    [
        REDUCE_SCATTER,
        {**REDUCE_SCATTER, "split_k": 8, "cluster_m": 2, "stages": 6, "store_stages": 1},
        {**PINGPONG, **REDUCE_SCATTER},
        {**SWAPPED, **REDUCE_SCATTER},
    ],
    ids=str,
)
@pytest.mark.parametrize("extra", [{}, {"acc_dtype": "float16"}, {"has_c": True}], ids=str)
def test_a_slice_has_the_same_bits_whatever_cta_finishes_it(hopper, monkeypatch, extra, variant) -> None:
    """Partials are added in one order, whether a CTA finishes its own slice or another CTA does."""
    problem = GemmProblem(520, 1288, 4096, **extra)
    own, _ = launched(hopper, problem, **variant)
    do_not_wait(monkeypatch)
    for _ in range(5):
        taken_over, _ = launched(hopper, problem, **variant)
        assert bool((taken_over == own).all())


def test_second_tiles_reverse_k(hopper) -> None:
    """Additions in another order give other last bits; first tiles, the upper half of D, have the same."""
    problem = GemmProblem(256, 128 * hopper.spec.sm_count, 4096, out_dtype="float32")
    knobs = {"epilogue": "direct", "store_stages": 1, "swizzle_size": 1}
    forth, _ = launched(hopper, problem, **knobs)
    back, _ = launched(hopper, problem, **knobs, reverse_k=1)
    assert bool((forth[:, :128] == back[:, :128]).all())
    assert bool((forth[:, 128:] != back[:, 128:]).any())


def test_loads_wait_for_the_load_interval(hopper, monkeypatch) -> None:
    """255 waits for a multiple of 512 clocks take longer than 64 x 64 x 64 multiply-adds for each k tile."""
    problem = GemmProblem(128, 64, 256 * 64)
    knobs = {**SMALL, "cluster_m": 2, "stages": 6}
    without = launched(hopper, problem, **knobs)[1]
    defines = WGMMA_WS.derived_macros
    monkeypatch.setattr(WGMMA_WS, "derived_macros", lambda *of: defines(*of) | {"LOAD_INTERVAL": 512})
    least = 255 * 512 / hopper.spec.clock_mhz
    assert launched(hopper, problem, **knobs)[1] > least > without
