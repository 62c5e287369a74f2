"""Raster order, direction of k, load interval and L2 hints of family wgmma_ws."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from device_samples import HOPPER

from kernels.compiler.nvrtc import compile_text
from kernels.wgmma_ws.config import Knobs
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wgmma_ws.heuristics import rated_candidates, with_derived_knobs
from kernels.wgmma_ws.layout import load_interval, raster_order
from tilewright import Config, GemmProblem

LARGE, DECODE = GemmProblem(8192, 8192, 8192), GemmProblem(64, 4096, 14336)


def searched(config: Config, problem: GemmProblem, **changes: Any) -> list[str]:
    """Why a config with some other knobs is not worth a trial."""
    changed = Config.of("wgmma_ws", {**dict(config.knobs), **changes})
    assert WGMMA_WS.why_invalid(changed, problem, HOPPER) is None
    knobs = WGMMA_WS.knob_values(changed)
    return [said for rule in WGMMA_WS.search_rules if (said := rule.why(knobs, problem, HOPPER))]


def test_large_products_reverse_k() -> None:
    best = WGMMA_WS.heuristic_configs(LARGE, HOPPER)[0]
    assert (best["cta_order"], best["reverse_k"]) == ("gpc", 1)
    assert searched(best, LARGE) == searched(best, LARGE, reverse_k=0) == []
    assert searched(best, LARGE, cta_order="free") == []


INTERVALS = [
    # 128 x 256 x 64 multiply-adds at 2048 a clock are 1024 clocks, 128 x 96 x 64 are 384: 768 are needed.
    ({"tile_m": 128, "tile_n": 256}, 512),
    ({"tile_m": 128, "tile_n": 192}, 512),
    ({"tile_m": 128, "tile_n": 184}, 0),
    ({"tile_m": 128, "tile_n": 256, "cta_order": "free"}, 0),
    ({"tile_m": 128, "tile_n": 256, "split_k": 2}, 0),
]


@pytest.mark.parametrize(("knobs", "clocks"), INTERVALS, ids=str)
def test_the_load_interval_is_shorter_than_the_products_of_a_stage(
    knobs: dict[str, Any], clocks: int
) -> None:
    assert load_interval(Knobs(**{"cta_order": "gpc", "cluster_m": 2, **knobs}), LARGE) == clocks


def test_the_first_config_for_a_short_k() -> None:
    """A stays in the L2 while B and D pass through, and stores of D are aligned to sectors."""
    problem = GemmProblem(4096, 24576, 1536)
    first, _, best = WGMMA_WS.heuristic_configs(problem, HOPPER)[:3]
    assert (first["schedule"], first["tile_n"], first["sector_aligned_store"]) == ("pingpong", 200, 0)
    assert (best["schedule"], best["tile_n"], best["sector_aligned_store"]) == ("pingpong", 208, 1)
    assert best["l2_hints"] == "keep_a"
    narrower = next(one for one in WGMMA_WS.heuristic_configs(problem, HOPPER) if one["tile_n"] == 176)
    assert narrower["sector_aligned_store"] == 1
    assert (
        searched(best, problem) == searched(narrower, problem, sector_aligned_store=0, store_stages=1) == []
    )
    assert searched(best, problem, l2_hints="normal") == searched(best, problem, l2_hints="stream_d") == []
    (kept,) = searched(best, problem, l2_hints="keep_b")
    assert "keeps an operand only where it fits" in kept


def test_what_the_l2_cannot_keep_is_not_asked_for() -> None:
    for problem in (LARGE, GemmProblem(2048, 2048, 2048), DECODE):
        configs = WGMMA_WS.heuristic_configs(problem, HOPPER)
        assert not {config["l2_hints"] for config in configs} & {"keep_a", "keep_b"}, problem


def test_what_comes_first_for_a_small_d_of_a_long_k() -> None:
    """Splits fill the SMs; operands stream through the L2, which partials go through."""
    problem = GemmProblem(512, 512, 16384)
    best = WGMMA_WS.heuristic_configs(problem, HOPPER)[0]
    ctas = (512 // best["tile_m"]) * (512 // best["tile_n"]) * best["split_k"]
    assert (ctas, best["reduction"], best["cta_order"]) == (128, "reduce_scatter", "gpc")
    assert best["l2_hints"] == "stream_ab"
    assert searched(best, problem) == searched(best, problem, l2_hints="normal") == []


@pytest.mark.parametrize(("hints", "again"), [("stream_a", "read A again"), ("stream_b", "read B again")])
def test_what_later_waves_read_again_is_not_let_go(hints: str, again: str) -> None:
    """The more where neighbours are not quite in step: it cost 1 to 4 % at 8192^3 and 12288^3."""
    (said,) = searched(WGMMA_WS.heuristic_configs(LARGE, HOPPER)[0], LARGE, l2_hints=hints)
    assert again in said


def test_few_rows_read_the_weights_once() -> None:
    assert {config["l2_hints"] for config in WGMMA_WS.heuristic_configs(DECODE, HOPPER)} == {"stream_b"}


def test_sector_alignment_is_not_tried_in_vain() -> None:
    config = next(one for one in WGMMA_WS.heuristic_configs(LARGE, HOPPER) if one["tile_n"] == 192)
    (said,) = searched(config, LARGE, sector_aligned_store=1)
    assert "sector-aligned anyway" in said


@pytest.mark.parametrize(
    ("changes", "widths"),
    [({"n": 8200}, {200, 208}), ({"out_dtype": "float32"}, {168, 176})],
    ids=str,
)
def test_ping_pong_is_tried_if_d_is_not_sector_aligned(changes: dict[str, Any], widths: set[int]) -> None:
    """Rows of 8200 elements start in the middle of a sector; float32 is not staged."""
    problem = dataclasses.replace(LARGE, **changes)
    rated = (k for _, k in rated_candidates(problem, HOPPER))
    pingpong = [k for k in rated if k.schedule == "pingpong" and k.tile_m == 128]
    tried = [with_derived_knobs(k, problem, HOPPER) for k in pingpong]
    valid = [k for k in tried if WGMMA_WS.why_invalid(WGMMA_WS.config(k), problem, HOPPER) is None]
    assert widths <= {k.tile_n for k in valid}
    assert not any(k.sector_aligned_store for k in valid)


def test_three_subtiles_get_two_store_stages() -> None:
    config = next(one for one in WGMMA_WS.heuristic_configs(LARGE, HOPPER) if one["schedule"] == "pingpong")
    three = {"tile_m": 64, "tile_n": 48, "stages": 12, "sector_aligned_store": 1}
    problem = GemmProblem(2048, 2048, 2048)
    said = [searched(config, problem, **three, store_stages=count) for count in (1, 2, 4)]
    assert [any("store stages" in one for one in reasons) for reasons in said] == [True, False, True]


NO_REVERSE_K = [
    (DECODE, {"split_k": 1}, "reads k only once"),
    (GemmProblem(512, 512, 8192, batch=64), {}, "reads k only once"),
    (GemmProblem(4096, 24576, 1536), {}, "fits the L2"),
    (GemmProblem(512, 512, 16384), {"split_k": 4}, "different splits of k"),
]


@pytest.mark.parametrize(("problem", "knobs", "expected"), NO_REVERSE_K, ids=str)
def test_where_k_is_not_reversed(problem: GemmProblem, knobs: dict[str, Any], expected: str) -> None:
    configs = WGMMA_WS.heuristic_configs(problem, HOPPER)
    assert {config["reverse_k"] for config in configs} == {0}
    config = next(one for one in configs if knobs.items() <= dict(one.knobs).items())
    assert any(expected in said for said in searched(config, problem, reverse_k=1))


def test_tiles_that_cut_a_single_wave_evenly_come_first() -> None:
    """4 x 32 tiles of 80 x 64 on 132 SMs: one consumer, no cluster, those of a column together."""
    problem = GemmProblem(320, 2048, 1024)
    first = [WGMMA_WS.knob_values(config) for config in WGMMA_WS.heuristic_configs(problem, HOPPER)[:3]]
    even = next(k for k in first if (k.swap_ab, k.tile_m, k.tile_n) == (1, 80, 64))
    assert (even.consumers, even.cluster, even.raster, even.swizzle_size) == (1, 1, "m", 4)
    narrow = WGMMA_WS.heuristic_configs(GemmProblem(65536, 24, 24), HOPPER)
    assert (narrow[0]["tile_m"], narrow[0]["tile_n"]) == (256, 24)


def test_tiles_of_short_launches_are_tried_without_a_cluster_first() -> None:
    """Of 1536 x 2048 x 384 the third of these is the fastest."""
    configs = WGMMA_WS.heuristic_configs(GemmProblem(1536, 2048, 384, layout="tn"), HOPPER)
    found = [WGMMA_WS.knob_values(config) for config in configs]
    assert [k.shape for k in found[:3]] == [
        ("cooperative", 0, 192, 128),
        ("cooperative", 0, 128, 192),
        ("pingpong", 0, 64, 192),
    ]
    assert [k.cluster for k in found[:3]] == [1, 1, 1]


@pytest.mark.parametrize("size", [(128, 4096, 4096), (64, 4096, 4096), (512, 2048, 2048)], ids=str)
def test_what_the_model_rates_far_behind_does_not_come_first(size: tuple[int, int, int]) -> None:
    """A tile without a cluster that would take over 1.2 times the clocks of the same tile in clusters."""
    problem = GemmProblem(*size)
    configs = WGMMA_WS.heuristic_configs(problem, HOPPER)
    clocks = [WGMMA_WS.estimated_clocks(config, problem, HOPPER) or 0.0 for config in configs]
    assert clocks[0] <= 1.2 * min(clocks)
    assert max(clocks) <= 1.25 * clocks[0] + 2000


def test_a_single_wave_evicts_its_operands_first_unless_d_is_large() -> None:
    first = WGMMA_WS.heuristic_configs(GemmProblem(512, 2048, 2048), HOPPER)[0]
    assert first["l2_hints"] == "stream_ab"
    assert WGMMA_WS.heuristic_configs(GemmProblem(2048, 2048, 512), HOPPER)[0]["l2_hints"] == "normal"
    two_waves = GemmProblem(1024, 2048, 2048)
    assert "later columns of tiles read A again" in " ".join(searched(first, two_waves, l2_hints="stream_ab"))
    hints = [config["l2_hints"] for config in WGMMA_WS.heuristic_configs(LARGE, HOPPER)]
    assert "stream_ab" not in hints


@pytest.mark.parametrize(
    ("size", "tile", "depth"),
    [
        ((32, 4096, 14336), (16, 64), (128, 11)),  # all that fit: each stage is loaded ten times
        ((16, 6144, 4096), (16, 64), (128, 6)),  # 96 CTAs that load each stage three times
        ((128, 4096, 4096), (128, 64), (64, 8)),  # only four of the longer rows would fit
        ((128, 28672, 4096), (64, 224), (64, 6)),  # a second store stage would cost a stage
        ((64, 2048, 1024), (64, 48), (128, 6)),  # few CTAs, with a second store stage as well
    ],
    ids=str,
)
def test_few_rows_keep_many_bytes_in_flight(
    size: tuple[int, int, int], tile: tuple[int, int], depth: tuple[int, int]
) -> None:
    configs = WGMMA_WS.heuristic_configs(GemmProblem(*size, "bfloat16"), HOPPER)
    config = next(one for one in configs if (one["tile_m"], one["tile_n"]) == tile)
    assert (config["tile_k"], config["stages"]) == depth


@pytest.mark.parametrize(("k", "depth"), [(512, (4, 2)), (768, (5, 1)), (2048, (5, 1))], ids=str)
def test_a_short_k_leaves_stages_for_the_store(k: int, depth: tuple[int, int]) -> None:
    """Of 6144 x 5120 x 512 four stages and two for the store are 2 % faster, from k = 768 on 1 % slower."""
    configs = WGMMA_WS.heuristic_configs(GemmProblem(6144, 5120, k, "bfloat16", "tn"), HOPPER)
    config = next(one for one in configs if (one["schedule"], one["tile_n"]) == ("pingpong", 192))
    assert (config["stages"], config["store_stages"]) == depth


def test_ctas_that_share_k_need_five_stages() -> None:
    """Of 128 bytes of a row each; with three, 256 x 128 for 256 x 8192 x 8192 takes 1.23 times the best."""
    problem = GemmProblem(256, 8192, 8192, "bfloat16")
    tried = {}
    for tile_m, stages in ((256, 3), (128, 5)):
        tile = {
            "tile_m": tile_m,
            "consumers_m": tile_m // 128,
            "store_stages": 1,
            "stages": stages,
            "raster": "m",
        }
        config = next(one for one in WGMMA_WS.heuristic_configs(problem, HOPPER) if one["tile_n"] == 128)
        tried[tile_m] = " ".join(searched(config, problem, **tile, cluster_m=1, cluster_n=1, cluster_k=2))
    assert "leaves too few stages" in tried[256]
    assert "leaves too few stages" not in tried[128]
    for config in WGMMA_WS.heuristic_configs(problem, HOPPER):
        assert config["cluster_k"] == 1 or config["stages"] >= 5


def test_all_stages_of_a_narrow_tile_are_searched_and_fewer() -> None:
    config = WGMMA_WS.heuristic_configs(GemmProblem(32, 4096, 14336), HOPPER)[0]
    said = [searched(config, GemmProblem(32, 4096, 14336), stages=count) for count in (6, 8, 11)]
    assert [bool(reasons) for reasons in said] == [False, True, False]


@pytest.mark.parametrize(
    ("size", "prefetched"),
    [((64, 28672, 4096), 4), ((128, 8192, 4096), 4), ((128, 28672, 4096), 0)],
    ids=str,
)
def test_large_weights_of_more_than_64_rows_are_not_prefetched(
    size: tuple[int, int, int], prefetched: int
) -> None:
    assert WGMMA_WS.heuristic_configs(GemmProblem(*size), HOPPER)[0]["prefetch"] == prefetched


def test_the_model_counts_rows_outside_and_pairs_of_ctas() -> None:
    """A tile of 64 rows for 8 takes 1.3 to 2 times as long as one of 8, a pair up to 1.4 times as one CTA."""
    first = WGMMA_WS.heuristic_configs(GemmProblem(8, 4096, 14336), HOPPER)[0]
    assert (first["swap_ab"], first["tile_m"]) == (1, 8)
    first, second = WGMMA_WS.heuristic_configs(GemmProblem(512, 4096, 4096), HOPPER)[:2]
    assert [first["cluster_m"] * first["cluster_n"], second["cluster_m"] * second["cluster_n"]] == [1, 1]


@pytest.mark.parametrize(("n", "layout"), [(1, "nn"), (32, "nn"), (32, "tn")])
def test_few_columns_are_searched_where_b_is_stored_by_rows_of_n(n: int, layout: str) -> None:
    """Tiles are at least 64 wide there."""
    problem = GemmProblem(4096, n, 4096, layout=layout)
    configs = WGMMA_WS.heuristic_configs(problem, HOPPER)
    assert configs
    assert [WGMMA_WS.why_not_searched(one, problem, HOPPER) for one in configs] == [None] * len(configs)


def test_few_rows_may_be_cut_into_several_tiles() -> None:
    """Weights that later rows of tiles read again are not evicted first."""
    problem = GemmProblem(100, 1024, 1024)
    best = WGMMA_WS.heuristic_configs(problem, HOPPER)[0]
    assert (best["swap_ab"], best["tile_m"], best["tile_n"], best["l2_hints"]) == (1, 16, 64, "normal")


ORDERS = [
    # 4096 x 1536 of A stay in the L2, so a small swizzle size along n loads B once.
    (GemmProblem(4096, 24576, 1536), (256, 200), 2, ("n", 4, 1)),
    # 66 clusters at once are 2112 rows and 3200 columns or so of D.
    (LARGE, (512, 200), 2, ("n", 16, 1)),
    (LARGE, (256, 416), 2, ("m", 8, 1)),
    # Eight columns only: two strips run at once, and a GPC has four rows and two columns.
    (GemmProblem(16384, 2048, 8192), (256, 256), 2, ("m", 4, 1)),
    # 132 clusters of two CTAs are two waves.
    (GemmProblem(2048, 4608, 3584), (192, 384), 2, ("n", 2, 1)),
    # A single wave: of 16 rows of tiles, 5, 4, 16 and 1. Tiles that read the same columns of B follow each
    # other, or the same rows of A if that is larger.
    (GemmProblem(2048, 2048, 2048), (128, 256), 1, ("m", 8, 1)),
    (GemmProblem(320, 2048, 1024), (64, 80), 1, ("m", 8, 0)),
    (GemmProblem(512, 512, 16384), (128, 128), 1, ("m", 4, 0)),
    (GemmProblem(2048, 512, 1024), (128, 64), 1, ("m", 1, 0)),
    (DECODE, (64, 64), 1, ("m", 1, 0)),
    # Fewer SMs than a cluster has CTAs.
    (dataclasses.replace(LARGE, batch=3), (128, 128), 8, ("m", 8, 1)),
]


@pytest.mark.parametrize(("problem", "extent", "ctas", "expected"), ORDERS, ids=str)
def test_the_raster_order_of_heuristic_configs(problem, extent, ctas, expected) -> None:
    device = dataclasses.replace(HOPPER, sm_count=4) if ctas == 8 else HOPPER
    assert raster_order(problem, device, extent, ctas) == expected


@pytest.mark.parametrize(
    "problem",
    [
        LARGE,
        GemmProblem(2048, 4608, 3584),
        GemmProblem(512, 512, 512, batch=64),
        GemmProblem(64, 28672, 4096),
    ],
    ids=str,
)
@pytest.mark.parametrize("sm_count", [132, 114, 16])
def test_raster_orders_are_searched(problem: GemmProblem, sm_count: int) -> None:
    """The order for every cluster of 128 x 128 tiles, heuristic config or not."""
    device = dataclasses.replace(HOPPER, sm_count=sm_count)
    base = WGMMA_WS.heuristic_configs(LARGE, HOPPER)[0]
    for rows, columns in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1)):
        raster, swizzle_size, snake = raster_order(
            problem, device, (128 * rows, 128 * columns), rows * columns
        )
        found = {"tile_m": 128, "tile_n": 128, "cluster_m": rows, "cluster_n": columns, "cta_order": "free"}
        found |= {"raster": raster, "swizzle_size": swizzle_size, "snake": snake}
        knobs = WGMMA_WS.knob_values(Config.of("wgmma_ws", {**dict(base.knobs), **found}))
        assert [
            rule.why(knobs, problem, device) for rule in WGMMA_WS.search_rules if "snake" in rule.reads
        ] == [None]


def test_k_is_reversed() -> None:
    """WorkTile::k_tile as compiled: k tiles 3, 4 and 5, and 5, 4 and 3."""
    claims = "".join(
        f'static_assert(WorkTile{{0, 0, 0, 0, 3, 6, 0, 0, {back}}}.k_tile({index}) == {tile}, "");\n'
        for back, tiles in (("false", (3, 4, 5)), ("true", (5, 4, 3)))
        for index, tile in enumerate(tiles)
    )
    text = f'#include "wgmma_ws/scheduler.cuh"\n{claims}extern "C" __global__ void nothing() {{}}\n'
    config = WGMMA_WS.heuristic_configs(LARGE, HOPPER)[0]
    compile_text(text, "sm_90a", WGMMA_WS.build_spec(config, LARGE, HOPPER).defines, entry="nothing")
