"""Family stream: tiles, panels, clusters, shared memory by hand, rules on both sides, picks that compile."""

from __future__ import annotations

import dataclasses
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernels.build import CSRC, CompileError, build, compile_spec
from kernels.families.stream import STREAM
from kernels.families.stream_knobs import Knobs, max_k, smem_bytes, thin_panels
from kernels.families.stream_rules import balance, why_cluster, why_split
from kernels.family import BuildSpec
from kernels.nvrtc import compile_text
from kernels.registry import families_for
from tilewright import Config, DeviceSpec, GemmProblem
from tilewright.artifact import Workspace

H200 = DeviceSpec("cuda", "sm_90", "H200", 132, 140 << 30, 50 << 20, 232448, 233472)
A100 = dataclasses.replace(H200, arch="sm_80", name="A100", units=108, smem_per_block=166912)
DECODE, SIXTEEN = GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336)
LARGE, QUERIES = GemmProblem(16, 28672, 4096), GemmProblem(16, 6144, 4096)
TALL = GemmProblem(4096, 3, 1000, dtype="bfloat16", has_bias=True, activation="gelu")
BYTES = GemmProblem(8, 4096, 4096, dtype="float8_e4m3fn", batch=2)
INTEGERS = GemmProblem(1024, 5, 8192, dtype="uint8", has_c=True)
PROBLEMS = [DECODE, QUERIES, SIXTEEN, LARGE, TALL, BYTES, INTEGERS]
BASE = {
    "warp_tiles": 1, "warps": 4, "panels": 1, "split_k": 1, "stages": 4, "cluster_k": 1, "hint": "normal",
    "l2_promotion": 128, "prefetch": 0,
}  # fmt: skip


def why(changes: dict[str, Any], problem: GemmProblem = DECODE, device: DeviceSpec = H200) -> str | None:
    return STREAM.why_invalid(Config.of("stream", BASE | changes), problem, device)


def knobs_of(problem: GemmProblem) -> list[dict[str, Any]]:
    return [dict(one.knobs) for one in STREAM.picks(problem, H200)]


def with_defines(spec: BuildSpec, **changes: int | str) -> BuildSpec:
    return dataclasses.replace(spec, defines=tuple(sorted((dict(spec.defines) | changes).items())))


# (problem, knobs, bytes): ring + thin slice + sums + inbox of a cluster + barriers + 1024 of alignment.
# Barriers are 2 a stage of the ring, 1 a stage of the thin slice and 2 of a cluster.
SMEM = [
    # 4 stages of 4 boxes of 2 KiB; 64 panels of one row, 16 stages; 4 warps of 1 x (16 + 4) floats.
    (DECODE, {}, 4 * 4 * 2048 + 64 * 128 + 4 * 20 * 4 + (2 * 4 + 16) * 8 + 1024),
    # 224 panels in 4 splits of 56, 7 stages, 16 rows each; boxes of 32 rows, 2 a warp.
    (SIXTEEN, {"split_k": 4, "warp_tiles": 2, "panels": 2, "stages": 2},
     2 * 8 * 4096 + 56 * 16 * 128 + 4 * 16 * 36 * 4 + (2 * 2 + 7) * 8 + 1024),
    # In 8 blocks 28, 4 stages of which the last is half empty; two tiles of 32 x 16 floats are exchanged.
    (SIXTEEN, {"cluster_k": 8, "warps": 8, "warp_tiles": 2},
     4 * 8 * 4096 + 28 * 16 * 128 + 8 * 16 * 36 * 4 + 2 * 32 * 16 * 4 + (2 * 4 + 4 + 2) * 8 + 1024),
    # 1000 elements of 2 bytes are 16 panels, 2 stages; 3 rows take 4.
    (TALL, {"warps": 8}, 4 * 8 * 2048 + 16 * 4 * 128 + 8 * 4 * 20 * 4 + (2 * 4 + 2) * 8 + 1024),
    # 8192 bytes are 64 panels, in 11 splits of at most 6, which begin a second stage.
    (INTEGERS, {"split_k": 11}, 4 * 4 * 2048 + 6 * 8 * 128 + 4 * 8 * 20 * 4 + (2 * 4 + 2) * 8 + 1024),
    # In 4 blocks 16, which are no whole stage of 32; two tiles of 16 x 8 integers.
    (INTEGERS, {"cluster_k": 4, "warps": 8, "panels": 4, "stages": 2},
     2 * 32 * 2048 + 16 * 8 * 128 + 8 * 8 * 20 * 4 + 2 * 16 * 8 * 4 + (2 * 2 + 1 + 2) * 8 + 1024),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "changes", "expected"), SMEM, ids=str)
def test_shared_memory_is_what_the_source_lays_out(problem, changes, expected) -> None:
    config = Config.of("stream", BASE | changes)
    assert STREAM.why_invalid(config, problem, H200) is None
    knobs, plan = STREAM.knob_values(config), STREAM.plan(config, problem, H200)
    assert smem_bytes(knobs, problem) == plan.dynamic_smem == expected
    spec = STREAM.build_spec(config, problem, H200)
    held = f'static_assert(SharedMemory::bytes == {expected - 1024}, "as planned");'
    begun = f'static_assert(cfg::threads + 32 == {plan.block[0]}, "as planned");'
    source = f"{(CSRC / spec.source).read_text()}\n{held}\n{begun}\n"
    compile_text(source, spec.target, spec.defines, entry=spec.entry, name=spec.source)
    # One flag of split-K comes on top.
    assert compile_spec(spec).resources.static_smem <= (16 if knobs.split_k > 1 else 0)


SHARED = [(1, 1), (2, 1), (3, 1), (11, 1), (1, 2), (1, 4), (1, 8)]  # split_k, cluster_k


@pytest.mark.parametrize(("split_k", "cluster_k"), SHARED)
def test_a_share_takes_whole_panels_and_the_slice_the_longest(split_k, cluster_k) -> None:
    knobs, shares = Knobs(1, 4, 1, split_k, cluster_k=cluster_k), split_k * cluster_k
    for k in (8, 64, 72, 4096, 4104, 14336):
        problem = GemmProblem(1, 64, k)
        panels = -(-k // 64)
        ends = [panels * share // shares for share in range(shares + 1)]  # as Work::unit has them
        longest = max(after - before for before, after in itertools.pairwise(ends))
        assert thin_panels(knobs, problem) == longest
        assert max_k(knobs, problem) == shares * longest * 64 >= k


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_no_other_k_has_longer_shares(dtype) -> None:
    problem = GemmProblem(16, 4096, 14336, dtype=dtype)
    elements = 128 // problem.dtype.size
    for split_k, cluster_k in SHARED:
        knobs, shares = Knobs(1, 4, 1, split_k, cluster_k=cluster_k), split_k * cluster_k
        held = thin_panels(knobs, problem)
        most = max_k(knobs, problem) // elements
        assert -(-most // shares) == held
        assert -(-(most + 1) // shares) == held + 1


def test_a_plan_serves_no_longer_k() -> None:
    config = Config.of("stream", BASE | {"split_k": 3})
    plan = STREAM.plan(config, DECODE, H200)
    # 64 panels in three splits of at most 22.
    assert plan.preconditions.max_k == 3 * 22 * 64
    assert plan.why_not(dataclasses.replace(DECODE, k=3 * 22 * 64)) is None
    assert plan.why_not(dataclasses.replace(DECODE, m=40, n=8)) is None  # in more tiles
    assert "k must be at most 4224" in (plan.why_not(dataclasses.replace(DECODE, k=4232)) or "")


@pytest.mark.parametrize(
    ("cluster_k", "k", "most"),
    [(2, 4096, 4096), (8, 4096, 4096), (2, 4104, 2 * 33 * 64), (8, 4104, 8 * 9 * 64), (8, 8, 8 * 64)],
)
def test_a_plan_serves_the_k_that_a_cluster_holds(cluster_k, k, most) -> None:
    """4096 are 64 panels, which 8 blocks share evenly; one more makes the longest share 9 of them, or 33."""
    plan = STREAM.plan(Config.of("stream", BASE | {"cluster_k": cluster_k}), GemmProblem(1, 64, k), H200)
    assert plan.preconditions.max_k == most


@pytest.mark.parametrize(
    ("problem", "tile", "weights"), [(LARGE, (16, 32), "b"), (TALL, (32, 4), "a")], ids=str
)
def test_the_plan(problem, tile, weights) -> None:
    config = Config.of("stream", BASE | {"warp_tiles": 2, "split_k": 8, "hint": "evict_first"})
    plan = STREAM.plan(config, problem, H200)
    assert (plan.grid.tile_m, plan.grid.tile_n) == tile
    assert (plan.block, plan.cluster) == ((4 * 32 + 32, 1, 1), (1, 1, 1))
    assert (plan.args[0].operand, plan.args[0].box, plan.args[0].swizzle) == (weights, (32, 64), 128)
    # 132 multiprocessors hold 16 whole groups of 8 splits: a block's units then all have the same split.
    assert plan.grid.blocks(problem) == (128, 1, 1)
    per_thread = -(-tile[0] * tile[1] // 128)  # of those that multiply
    assert plan.workspace.bytes_per_tile == 8 * per_thread * 128 * 4
    assert plan.programmatic


@pytest.mark.parametrize(("cluster_k", "blocks"), [(1, 132), (2, 132), (4, 120), (8, 120)])
@pytest.mark.parametrize("problem", [LARGE, TALL], ids=str)
def test_the_plan_of_clusters(problem, cluster_k, blocks) -> None:
    """Clusters of 4 and 8 do not fill all of 132 multiprocessors; what they exchange needs no workspace."""
    config = Config.of("stream", BASE | {"cluster_k": cluster_k, "warps": 8})
    plan = STREAM.plan(config, problem, H200)
    assert (plan.block, plan.cluster) == ((8 * 32 + 32, 1, 1), (cluster_k, 1, 1))
    assert plan.grid.blocks(problem) == (blocks, 1, 1)
    assert plan.workspace == Workspace()
    assert dict(STREAM.build_spec(config, problem, H200).defines)["CLUSTER_K"] == cluster_k


@pytest.mark.parametrize("shares", [{"split_k": 3}, {"cluster_k": 4}], ids=str)
def test_few_units_are_few_blocks(shares) -> None:
    problem = GemmProblem(2, 100, 4096)
    plan = STREAM.plan(Config.of("stream", BASE | shares), problem, H200)
    assert plan.grid.blocks(problem) == (7 * max(shares.values()), 1, 1)


def test_blocks_come_in_whole_clusters() -> None:
    """Of 16 multiprocessors clusters of 4 would fill 14, which are 3 of them, and one of 8."""
    part = dataclasses.replace(H200, units=16)
    for cluster_k, blocks in ((2, 16), (4, 12), (8, 8)):
        plan = STREAM.plan(Config.of("stream", BASE | {"cluster_k": cluster_k}), LARGE, part)
        assert plan.grid.blocks(LARGE) == (blocks, 1, 1)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, 1792 / (14 * 132)),  # 28672 rows are 1792 tiles, 13.6 a block: 14 rounds, the last not full
        ({"split_k": 11}, 1792 * 11 / (150 * 132)),  # 149.3 rounds
        ({"cluster_k": 2}, 1792 * 2 / (28 * 132)),  # 66 clusters: 27.2 rounds
        ({"cluster_k": 4}, 1792 * 4 / (60 * 120)),  # 30 clusters: 59.7 rounds
        ({"cluster_k": 8}, 1792 * 8 / (120 * 120)),  # 15 clusters: 119.5 rounds
    ],
    ids=str,
)
def test_balance(shares, expected) -> None:
    """Of the multiprocessors that clusters can fill at all."""
    assert balance(Knobs(1, 4, 1, **shares), LARGE, H200) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "problem", "device", "reason"),
    [
        ({}, GemmProblem(17, 17, 64), H200, "m or n up to 16"),
        ({}, DECODE, A100, "TMA of sm_90"),
        ({}, dataclasses.replace(DECODE, acc_dtype="float16"), H200, "not float16"),
        ({}, GemmProblem(1, 64, 64, dtype="float32"), H200, "not float32"),
        ({}, dataclasses.replace(DECODE, layout="nn"), H200, "layout nt, not nn"),
        ({}, dataclasses.replace(DECODE, k=4095), H200, "multiples of 16 bytes"),
        ({}, SIXTEEN, H200, "458752 hold the thin operand: share k out"),
        ({"cluster_k": 2}, SIXTEEN, H200, "229376 hold the thin operand: share k out"),
        ({"split_k": 4}, SIXTEEN, H200, None),
        ({"cluster_k": 4}, SIXTEEN, H200, None),
        ({"cluster_k": 3}, DECODE, H200, "cluster_k must be one of (1, 2, 4, 8)"),
        ({"warps": 16, "panels": 4, "warp_tiles": 2}, DECODE, H200, "bytes of shared memory"),
        ({}, GemmProblem(16, 64, 1 << 20), H200, "hold the thin operand"),
        ({"prefetch": 4}, DECODE, H200, None),
        ({}, TALL, H200, None),
    ],
    ids=str,
)
def test_problems_and_budgets(changes, problem, device, reason) -> None:
    said = why(changes, problem, device)
    assert said is None if reason is None else reason in (said or "")


def test_a_k_that_no_split_holds_is_unsupported() -> None:
    """12 splits beside the smallest ring: 232448 - 16 - 2 * 8208 - 5120 - 1024 bytes hold 102 panels of 2048
    and their 26 barriers, which leaves 768."""
    longest = 12 * 102 * 64
    assert "stream" in families_for(GemmProblem(16, 4096, longest), H200)
    assert "stream" not in families_for(GemmProblem(16, 4096, longest + 64), H200)
    assert STREAM.picks(GemmProblem(16, 4096, longest), H200)
    assert list(STREAM.enumerate(GemmProblem(16, 4096, longest), H200))


# What Python refuses as unsupported, and what of a config it never says, the source asserts.
BROKEN = [
    ({"IN_TYPE": "tf32"}, "stream multiplies f16"),
    ({"IN_TYPE": "float"}, "stream multiplies f16"),
    ({"IN_TYPE": "s4"}, "stream multiplies f16"),
    ({"B_TRANSPOSED": 0}, "rows run along k"),
    ({"A_TRANSPOSED": 1}, "rows run along k"),
    ({"TILE_N": 48}, "WARP_TILES x 16"),
    ({"TILE_M": 3}, "1, 2, 4, 8 or 16 rows"),
    ({"TILE_M": 32}, "1, 2, 4, 8 or 16 rows"),
    ({"TILE_K": 128}, "k of a stage"),
    ({"WARP_TILES": 3}, "WARP_TILES is 1 or 2"),
    ({"WARPS": 5}, "WARPS is 4, 8 or 16"),
    ({"PANELS": 3}, "PANELS is 1, 2 or 4"),
    ({"STAGES": 17}, "STAGES is in 2"),
    ({"THIN_PANELS": 0}, "THIN_PANELS is at least 1"),
    ({"CLUSTER_K": 3}, "CLUSTER_K is 1, 2, 4 or 8"),
    ({"CLUSTER_K": 16}, "CLUSTER_K is 1, 2, 4 or 8"),
    ({"WEIGHT_HINT": 2}, "WEIGHT_HINT is 0"),
    ({"PREFETCH": 33}, "at most one box"),
]


@pytest.mark.parametrize(("changes", "static_assert"), BROKEN, ids=str)
def test_the_source_asserts_what_it_was_written_for(changes, static_assert) -> None:
    spec = STREAM.build_spec(Config.of("stream", BASE), DECODE, H200)
    with pytest.raises(CompileError, match=static_assert):
        compile_spec(with_defines(spec, **changes))


@pytest.mark.parametrize("cluster_k", [2, 4, 8])
def test_splits_beside_clusters_are_refused_on_both_sides(cluster_k) -> None:
    changes = {"cluster_k": cluster_k, "split_k": 2}
    assert "with cluster_k, split_k is 1" in (why(changes) or "")
    spec = STREAM.build_spec(Config.of("stream", BASE | changes), DECODE, H200)
    with pytest.raises(CompileError, match="no splits beside it"):
        compile_spec(spec)
    assert compile_spec(with_defines(spec, SPLIT_K=1)).resources.spill_bytes == 0


@pytest.mark.parametrize("knob", STREAM.knobs, ids=lambda one: one.name)
def test_every_legal_value_compiles(knob) -> None:
    """Those of one knob beside the rest of BASE: what is legal passes the asserts of the source."""
    legal = [Config.of("stream", BASE | {knob.name: value}) for value in (knob.legal[0], knob.legal[-1])]
    for config in legal:
        assert STREAM.why_invalid(config, DECODE, H200) is None
        assert build(STREAM, config, DECODE, H200).resources.spill_bytes == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_sampled_configs_compile_without_spills(problem) -> None:
    points = list(STREAM.enumerate(problem, H200))
    assert len(points) > 60
    configs = [STREAM.at(point) for point in random.Random(7).sample(points, 4)]
    configs += STREAM.picks(problem, H200)[:2]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda c: build(STREAM, c, problem, H200).resources, configs))
    for config, resources in zip(configs, built, strict=True):
        assert resources.spill_bytes == 0, str(config)
        assert resources.registers * STREAM.plan(config, problem, H200).block[0] <= 65536, str(config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize(
    "size", [(1, 1, 16), (16, 16, 64), (3, 40, 4096), (16, 4096, 14336), (28672, 9, 4096)]
)
def test_every_type_and_size_has_picks(size, dtype) -> None:
    problem = GemmProblem(*size, dtype=dtype)
    picks = STREAM.picks(problem, H200)
    assert 1 <= len(picks) <= 8
    assert size[2] < 4096 or len({dict(one.knobs)["warps"] for one in picks}) > 1


@pytest.mark.parametrize(
    ("problem", "cluster_k", "warp_tiles"),
    [
        # 128 KiB of thin operand leave a ring too little, half of them enough.
        (QUERIES, 2, [2, 2, 2, 1, 1, 1, 1, 1]),
        (GemmProblem(9, 4096, 4096), 2, [2, 2, 2, 1, 1, 1, 1, 1]),
        (dataclasses.replace(QUERIES, m=6144, n=16), 2, [2, 2, 2, 1, 1, 1, 1, 1]),
        # Of 448 KiB a quarter is too much, an eighth is not.
        (SIXTEEN, 8, [2, 2, 2, 1, 1, 1, 1, 1]),
        (GemmProblem(8, 4096, 4096), 1, [1, 1, 1, 1, 1, 2, 2, 2]),
        (dataclasses.replace(LARGE, m=1), 1, [1, 1, 1, 1, 1, 2, 2, 2]),
    ],
    ids=str,
)
def test_picks_take_the_smallest_cluster_that_leaves_a_ring_its_room(problem, cluster_k, warp_tiles) -> None:
    picked = knobs_of(problem)
    assert {(one["split_k"], one["cluster_k"]) for one in picked} == {(1, cluster_k)}
    assert [one["warp_tiles"] for one in picked] == warp_tiles
    assert {one["stages"] * STREAM.knobs_type(**one).stage_bytes for one in picked} == {128 << 10}


def test_picks_split_k_where_no_cluster_does() -> None:
    """32 tiles, 1 to 8 blocks each: at best 256 in 3 rounds of 120. 4 splits are 128 blocks of 132."""
    shares = {(one["split_k"], one["cluster_k"]) for one in knobs_of(INTEGERS) if one["warp_tiles"] == 2}
    assert (4, 1) in shares
    # 30 tiles, of a thin operand that is too small for a cluster: 4 splits are 120 blocks, 2 where 4 would
    # not leave each two stages of 1024.
    few = GemmProblem(1, 480, 4096)
    assert {(one["warps"] * one["panels"], one["split_k"]) for one in knobs_of(few)} >= {(8, 4), (16, 2)}
    assert balance(Knobs(1, 8, 1, 4), few, H200) == pytest.approx(120 / 132)
    # The longest k: no cluster holds the thin operand.
    assert {one["split_k"] for one in knobs_of(GemmProblem(16, 4096, 12 * 102 * 64))} == {12}


def test_picks_fetch_early_what_the_l2_does_not_hold_anyway() -> None:
    assert {dict(one.knobs)["prefetch"] for one in STREAM.picks(LARGE, H200)} == {2, 4}
    assert {dict(one.knobs)["prefetch"] for one in STREAM.picks(GemmProblem(16, 512, 1024), H200)} == {0}


@pytest.mark.parametrize(
    ("k", "problem", "worth"),
    [
        (Knobs(1, 4, 1), DECODE, True),
        (Knobs(1, 4, 1, cluster_k=2), DECODE, False),  # 8 KiB in all
        (Knobs(1, 4, 1, cluster_k=2), dataclasses.replace(DECODE, k=14336), True),  # 28 KiB
        (Knobs(1, 4, 1, cluster_k=2), dataclasses.replace(DECODE, k=14208), False),  # 27.75 KiB
        (Knobs(1, 4, 1, cluster_k=8), QUERIES, True),  # 16 KiB each
        (Knobs(1, 4, 1, cluster_k=8), dataclasses.replace(QUERIES, k=8 * 7 * 64), True),  # 14 KiB each
        (Knobs(1, 4, 1, cluster_k=8), dataclasses.replace(QUERIES, k=8 * 6 * 64), False),  # 12 KiB each
        (Knobs(1, 4, 1, cluster_k=4), dataclasses.replace(QUERIES, k=8 * 6 * 64), True),  # 24 KiB each
    ],
    ids=str,
)
def test_clusters_are_tried_where_half_the_blocks_would_hold_28_kib(k, problem, worth) -> None:
    assert (why_cluster(k, problem, H200) is None) is worth


@pytest.mark.parametrize(
    ("k", "problem", "reason"),
    [
        (Knobs(1, 4, 1), QUERIES, None),
        # 41 tiles in clusters of 8 are 328 blocks, 3 rounds of 120 and 0.91 of their time; 40 are 0.89.
        (Knobs(1, 4, 1, 3), GemmProblem(16, 41 * 16, 4096), "share the work out"),
        (Knobs(1, 4, 1, 3), GemmProblem(16, 40 * 16, 4096), None),
        # Beside 49 panels of 2 KiB a block of 8 has 120.9 KiB left for its ring, beside 50 118.9.
        (Knobs(1, 4, 1, 12), GemmProblem(16, 4096, 8 * 49 * 64), "hold the thin operand"),
        (Knobs(1, 4, 1, 12), GemmProblem(16, 4096, 8 * 50 * 64), None),
        # 32 tiles, which no cluster makes as even as 0.9; two stages are 2 KiB of k, or 4.
        (Knobs(2, 8, 1, 4), INTEGERS, None),
        (Knobs(2, 8, 2, 4), INTEGERS, "two stages"),
        # 64 tiles: pairs are 128 blocks.
        (Knobs(1, 8, 1, 4), INTEGERS, "share the work out"),
    ],
    ids=str,
)
def test_splits_are_tried_where_no_cluster_does(k, problem, reason) -> None:
    said = why_split(k, problem, H200)
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.parametrize(
    ("problem", "shares"),
    [
        (GemmProblem(1, 28672, 4096), {(1, 1)}),
        (QUERIES, {(1, 1), (1, 2), (1, 4), (1, 8)}),
        (SIXTEEN, {(1, 4), (1, 8)}),
    ],
    ids=str,
)
def test_searched_clusters_and_splits(problem, shares) -> None:
    searched = map(STREAM.at, STREAM.enumerate(problem, H200))
    assert {(one["split_k"], one["cluster_k"]) for one in searched} == shares


@pytest.mark.parametrize(
    ("structure", "problem", "depths"),
    [
        ((1, 4, 1, 1), DECODE, {12, 16}),  # stages of 8 KiB: 16 are the most that are legal
        ((1, 8, 1, 1), DECODE, {6, 8, 10, 12}),
        ((1, 8, 2, 1), DECODE, {3, 4, 5, 6}),
        ((2, 8, 2, 1), DECODE, {2, 3}),  # of 64 KiB
        ((1, 8, 1, 2), QUERIES, {6, 8, 9}),  # 153552 bytes are left beside 64 KiB of thin operand
        ((1, 8, 1, 1), QUERIES, {5}),  # and 90048 beside 128 KiB
    ],
    ids=str,
)
def test_searched_rings_are_of_four_sizes_or_what_fits(structure, problem, depths) -> None:
    """96, 128, 160 and 192 KiB."""
    names = ("warp_tiles", "warps", "panels", "cluster_k")
    searched = map(STREAM.at, STREAM.enumerate(problem, H200))
    assert {one["stages"] for one in searched if tuple(one[name] for name in names) == structure} == depths


def test_a_config_from_before_clusters_is_completed() -> None:
    """`lockstep` went as `cluster_k` came; what is of now, or broken, stays as it is."""
    shared = {name: value for name, value in BASE.items() if name != "cluster_k"}
    stored = Config.of("stream", shared | {"lockstep": 1})
    assert "exactly the knobs" in (STREAM.why_invalid(stored, DECODE, H200) or "")
    completed = STREAM.completed(stored)
    assert dict(completed.knobs) == shared | {"cluster_k": 1}
    assert STREAM.why_invalid(completed, DECODE, H200) is None
    pair = Config.of("stream", BASE | {"cluster_k": 2})
    assert STREAM.completed(pair) == pair
    del shared["warps"]
    assert dict(STREAM.completed(Config.of("stream", shared)).knobs) == shared | {"cluster_k": 1}
