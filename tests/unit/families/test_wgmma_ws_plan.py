"""Family wgmma_ws: arguments, workspaces and launches of its plans, and its heuristic configs; no GPU."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_samples import HOPPER
from sweeps import every

from kernels.compiler.build import build
from kernels.wgmma_ws.config import Knobs as WgmmaWsKnobs
from kernels.wgmma_ws.family import MOST_HEURISTIC_CONFIGS, WGMMA_WS
from tilewright import Config, GemmProblem, LaunchPlan
from tilewright.artifact import Finish, Pointer, Repack, Scalar, TensorMap

NT = GemmProblem(4096, 4096, 4096)
NN = GemmProblem(4096, 4096, 4096, layout="nn")
ODD = GemmProblem(999, 1111, 777, batch=2)
BASE: dict[str, Any] = dataclasses.asdict(WgmmaWsKnobs(stages=3))
PINGPONG = {"schedule": "pingpong", "consumers_m": 1}
SWAPPED = {"swap_ab": 1, "tile_m": 16, "tile_n": 128, "consumers_m": 1, "consumers_n": 2, "swizzle_size": 1}
# (operand, box, swizzle, promotion) if A is not multicast, and if subtiles of D are 64 wide.
A = ("a", (128, 64), 128, 128)
D = ("d", (64, 64), 128, 0)
TILE = 128 * 256 * 4  # bytes of a tile's accumulators


def plan(changes: dict[str, Any], problem: GemmProblem = NT) -> LaunchPlan:
    config = Config.of("wgmma_ws", BASE | changes)
    assert WGMMA_WS.why_invalid(config, problem, HOPPER) is None
    return WGMMA_WS.plan(config, problem, HOPPER)


@pytest.mark.parametrize(
    ("changes", "problem", "maps"),
    [
        # Boxes of A are 128 rows x 64 k, of B 256 x 64, of D 64 x 64, or 40 columns if 64 do not divide.
        ({}, NT, [A, ("b", (256, 64), 128, 128), D]),
        ({"tile_n": 160}, NT, [A, ("b", (160, 64), 128, 128), ("d", (64, 40), 0, 0)]),
        # The widest sector-aligned subtiles have 32 columns there, and 16 if 32 do not divide.
        ({"tile_n": 160, "sector_aligned_store": 1}, NT, [A, ("b", (160, 64), 128, 128), ("d", (64, 32),
        64, 0)]),
        ({"tile_n": 208, "sector_aligned_store": 1}, NT, [A, ("b", (208, 64), 128, 128), ("d", (64, 16),
        32, 0)]),
        # A cluster of two along n loads halves of A; along m, halves of B, which in nn has lines of 64.
        ({"cluster_n": 2}, NT, [("a", (64, 64), 128, 128), ("b", (256, 64), 128, 128), D]),
        ({"cluster_m": 2}, NN, [A, ("b", (32, 64), 128, 128), D]),
        # Transposed, subtiles of D are 16 rows of 64 columns; without TMA there is no map of D.
        (
            SWAPPED, NT,
            [("a", (16, 64), 128, 128), ("b", (128, 64), 128, 128), ("d", (16, 64), 128, 0)],
        ),
        ({"epilogue": "stmatrix"}, NT, [A, ("b", (256, 64), 128, 128)]),
    ],
    ids=str,
)  # fmt: skip
def test_tensor_maps_come_first(changes: dict[str, Any], problem: GemmProblem, maps: list[Any]) -> None:
    args = plan(changes, problem).args
    assert list(args[: len(maps)]) == [TensorMap(*one) for one in maps]
    assert args[len(maps) : len(maps) + 2] == (Scalar("batch", "int32"), Pointer("a"))
    assert not any(isinstance(item, TensorMap) for item in args[len(maps) :])


def test_the_map_of_c_comes_before_that_of_d() -> None:
    """Of the same boxes, in a kind that earlier releases refuse; none if TMA does not load C."""
    problem = dataclasses.replace(NT, has_c=True)
    c, d = plan({}, problem).args[2:4]
    assert (c, d) == (TensorMap("c", D[1], D[2], D[3], "c_tensor_map"), TensorMap(*D))
    others = (
        {"epilogue": "stmatrix", "tile_n": 128},
        {"split_k": 2, "reduction": "kernel"},
        {"split_k": 2, "reduction": "reduce_scatter", "tile_n": 128},
        SWAPPED,
    )
    for changes in others:
        maps = [item for item in plan(changes, problem).args if isinstance(item, TensorMap)]
        assert "c" not in {item.operand for item in maps}


def test_how_it_is_launched() -> None:
    one = plan({"cluster_n": 2})
    assert (one.entry, one.target, one.block, one.cluster) == (
        WGMMA_WS.entry,
        "sm_90a",
        (384, 1, 1),
        (2, 1, 1),
    )
    assert one.programmatic
    assert one.grid.ctas(NT) == (132, 1, 1)
    assert (one.repacks, one.finish) == ((), None)
    assert plan({**PINGPONG, "tile_n": 160}).block == (384, 1, 1)
    assert plan({"tile_m": 192, "consumers_m": 3, "tile_n": 128}).block == (512, 1, 1)
    # 8 tiles that two CTAs each split: 16 CTAs, in clusters of two.
    small = GemmProblem(256, 1024, 4096)
    halves = plan({"tile_n": 256, "cluster_k": 2, "stages": 2, "store_stages": 1}, small)
    assert (halves.cluster, halves.grid.ctas(small)) == ((2, 1, 1), (16, 1, 1))


@pytest.mark.parametrize(
    ("changes", "zeroed", "rest"),
    [
        ({}, 0, 0),
        # 32 x 16 tiles, and the partials of every split; the kernel after needs no semaphores.
        ({"split_k": 4, "reduction": "kernel"}, 0, 512 * 4 * TILE),
        # A semaphore of 32 bytes a tile and consumer.
        ({"split_k": 4, "reduction": "reduce_scatter"}, 512 * 64, 512 * 4 * TILE),
        # Either ping-pong consumer may hold a split: one semaphore. 32 x 32 tiles of 128 x 128.
        (
            {**PINGPONG, "tile_n": 128, "split_k": 2, "reduction": "reduce_scatter"},
            1024 * 32,
            1024 * 2 * 65_536,
        ),
        (
            {"tile_n": 128, "cluster_n": 2, "split_k": 2, "reduction": "reduce_scatter"},
            1024 * 64,
            1024 * 2 * TILE // 2,
        ),
    ],
    ids=str,
)
def test_workspace(changes: dict[str, Any], zeroed: int, rest: int) -> None:
    made = plan(changes)
    assert (made.workspace_zero_bytes(NT), made.workspace_bytes(NT)) == (zeroed, zeroed + rest)


def test_workspace_counts_tiles_outside_of_d() -> None:
    # 32 x 15 tiles of 128 x 256 are 32 x 16 in clusters of two along n.
    uneven = dataclasses.replace(NT, n=3840, batch=3)
    made = plan({"cluster_n": 2, "split_k": 2, "reduction": "kernel"}, uneven)
    assert made.workspace_bytes(uneven) == 3 * 32 * 16 * 2 * TILE


def test_the_kernel_after() -> None:
    changes = {"split_k": 4, "reduction": "kernel"}
    made = plan(changes)
    assert made.finish == Finish("reduce_partials", (32, 8, 1), 8, 128)
    assert made.finish.ctas(NT) == (32 * 512, 1, 1)
    assert entries(changes, NT) == {WGMMA_WS.entry, "reduce_partials"}
    assert entries(changes | {"reduction": "reduce_scatter"}, NT) == {WGMMA_WS.entry}


def entries(changes: dict[str, Any], problem: GemmProblem) -> set[str]:
    """The kernels in the cubin."""
    binary = build(WGMMA_WS, Config.of("wgmma_ws", BASE | changes), problem, HOPPER).binary
    return {
        name
        for name in (WGMMA_WS.entry, "reduce_partials", "repack_rows")
        if f".text.{name}\0".encode() in binary
    }


@pytest.mark.parametrize(
    ("problem", "copied", "align"),
    [
        # Rows of 777 halves are 1554 bytes, of 776 they are 97 * 16.
        (ODD, "ab", (2, 2)),
        (dataclasses.replace(ODD, k=776), "", (16, 16)),
        # B of nn has rows of n, A of tn rows of m.
        (dataclasses.replace(ODD, k=776, layout="nn"), "b", (16, 2)),
        (dataclasses.replace(ODD, n=1112, layout="tn"), "a", (2, 16)),
        (GemmProblem(64, 64, 120, dtype="int8"), "ab", (1, 1)),
    ],
    ids=str,
)
def test_rows_that_tma_cannot_take_are_copied(problem: GemmProblem, copied: str, align: Any) -> None:
    direct = problem.out.size == 4
    store = {"epilogue": "direct" if direct else "stmatrix", "store_stages": 1 if direct else 2}
    shape = {"tile_n": 128, "tile_k": 128 // problem.dtype.size, **store}
    made = plan(shape, problem)
    assert made.repacks == tuple(Repack(name, "repack_rows", (256, 1, 1), 8) for name in copied)
    assert (made.preconditions.align_a, made.preconditions.align_b) == align
    assert made.why_not(problem) is None
    assert entries(shape, problem) == {WGMMA_WS.entry, "repack_rows"} if copied else {WGMMA_WS.entry}
    for name in copied:
        start, stride = made.packed(problem, name) or (0, 0)
        assert start % 256 == stride % 128 == 0
        assert start >= made.workspace_zero_bytes(problem)


def test_a_plan_without_copies_refuses_odd_rows() -> None:
    said = plan({"epilogue": "stmatrix"}, dataclasses.replace(ODD, k=776)).why_not(ODD)
    assert said == "row stride of a must be a multiple of 16 bytes"


PROBLEMS = [
    NT,
    GemmProblem(16, 4096, 4096),
    dataclasses.replace(ODD, layout="tt", has_bias=True, has_c=True, activation="gelu"),
    GemmProblem(256, 512, 16384, layout="tn", acc_dtype="float16"),
    GemmProblem(2048, 2048, 2048, dtype="float8_e4m3fn", out_dtype="bfloat16"),
    GemmProblem(2048, 2048, 2048, dtype="int8"),
]


@pytest.mark.parametrize("problem", every(6, PROBLEMS))
def test_heuristic_configs_are_searched_and_do_not_spill(problem: GemmProblem) -> None:
    configs = WGMMA_WS.heuristic_configs(problem, HOPPER)
    assert 3 <= len(configs) <= MOST_HEURISTIC_CONFIGS
    assert len(set(configs)) == len(configs)
    for config in configs:
        assert all(config[knob.name] in knob.values for knob in WGMMA_WS.knobs)
        assert WGMMA_WS.why_invalid(config, problem, HOPPER) is None
        knobs = WGMMA_WS.knob_values(config)
        assert [said for rule in WGMMA_WS.search_rules if (said := rule.why(knobs, problem, HOPPER))] == []
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda config: build(WGMMA_WS, config, problem, HOPPER), configs[:4]))
    assert [artifact.resources.spill_bytes for artifact in built] == [0] * len(built)
