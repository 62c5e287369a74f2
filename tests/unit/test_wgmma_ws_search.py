"""How family wgmma_ws walks over D and along k, and which configs load on a beat."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.families.wgmma_ws import WGMMA_WS
from kernels.families.wgmma_ws_walk import walk
from tilewright import Config, DeviceSpec, GemmProblem

HOPPER = DeviceSpec("cuda", "sm_90", "H200", 132, 141 << 30, 50 << 20, 227 << 10, 228 << 10)
LARGE, DECODE = GemmProblem(8192, 8192, 8192), GemmProblem(64, 4096, 14336)


def searched(config: Config, problem: GemmProblem, **changes: Any) -> list[str]:
    """Why a config with some other knobs is not worth a trial."""
    changed = Config.of("wgmma_ws", {**dict(config.knobs), **changes})
    assert WGMMA_WS.why_invalid(changed, problem, HOPPER) is None
    knobs = WGMMA_WS.knob_values(changed)
    return [said for rule in WGMMA_WS.search_rules if (said := rule.why(knobs, problem, HOPPER))]


def test_large_products_walk_k_back_and_forth_and_load_on_a_beat() -> None:
    best = WGMMA_WS.picks(LARGE, HOPPER)[0]
    assert (best["placement"], best["snake_k"], best["beat"]) == ("gpc", 1, 512)
    assert searched(best, LARGE) == searched(best, LARGE, beat=0) == searched(best, LARGE, snake_k=0) == []


def test_a_beat_is_for_blocks_of_a_gpc_that_take_neighbouring_tiles() -> None:
    best = WGMMA_WS.picks(LARGE, HOPPER)[0]
    (said,) = searched(best, LARGE, placement="free")
    assert "only blocks of a GPC" in said
    assert searched(best, LARGE, placement="free", beat=0) == []


@pytest.mark.parametrize(("beat", "clocks"), [(512, None), (1024, 1024)])
def test_a_beat_is_shorter_than_the_products_of_a_stage(beat: int, clocks: int | None) -> None:
    """128 * 256 * 64 multiply-adds at 2048 a clock are 1024 clocks, to be half as many again at least."""
    config = next(
        one
        for one in WGMMA_WS.picks(LARGE, HOPPER)
        if one["placement"] == "gpc" and one["schedule"] != "pingpong"
    )
    shape = {
        "tile_m": 128,
        "tile_n": 256,
        "consumers_m": 2,
        "epilogue": "tma",
        "stages": 4,
        "store_stages": 2,
    }
    said = [text for text in searched(config, LARGE, **shape, beat=beat) if "beat" in text]
    assert said == (
        [] if clocks is None else [f"a stage is multiplied in {clocks} clocks: the beat would hold it up"]
    )


def test_a_block_with_one_tile_has_no_way_back() -> None:
    for pick in WGMMA_WS.picks(DECODE, HOPPER):
        assert (pick["snake_k"], pick["beat"]) == (0, 0)
    single = next(one for one in WGMMA_WS.picks(DECODE, HOPPER) if one["split_k"] * one["cluster_k"] == 1)
    assert any("no way back" in said for said in searched(single, DECODE, snake_k=1))


WALKS = [
    # 4096 x 1536 of A stay in the L2, so narrow bands along n load B once.
    (GemmProblem(4096, 24576, 1536), (256, 200), 2, ("n", 4, 1)),
    # The 66 clusters of a wave form a square of 4096 x 3300 or so.
    (LARGE, (512, 200), 2, ("n", 16, 1)),
    (LARGE, (256, 416), 2, ("m", 8, 1)),
    # Eight columns only: two bands run at once, and a GPC has four rows and two columns.
    (GemmProblem(16384, 2048, 8192), (256, 256), 2, ("m", 4, 1)),
    # A single wave, and a single row.
    (GemmProblem(2048, 2048, 2048), (128, 256), 1, ("m", 8, 1)),
    (GemmProblem(512, 512, 16384), (128, 128), 1, ("m", 1, 0)),
    (DECODE, (64, 64), 1, ("m", 1, 0)),
]


@pytest.mark.parametrize(("problem", "extent", "blocks", "expected"), WALKS, ids=str)
def test_the_walk_of_first_picks(problem, extent, blocks, expected) -> None:
    assert walk(problem, HOPPER, extent, blocks) == expected
