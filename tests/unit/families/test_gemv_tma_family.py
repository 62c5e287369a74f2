"""Family gemv_tma: shared memory by hand, k partitions, plans, rules on both sides."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from gemv_tma_samples import (
    A100,
    BASE,
    DECODE,
    H200,
    INTEGERS,
    LARGE,
    SIXTEEN,
    TALL,
    config_of,
    why,
)
from sweeps import every

from kernels import registry
from kernels.base.spec import SOURCES
from kernels.compiler.build import compile_spec
from kernels.compiler.nvrtc import compile_text
from kernels.gemv_tma.config import CLUSTERS, Knobs
from kernels.gemv_tma.family import GEMV_TMA
from kernels.gemv_tma.layout import activation_k_chunks, max_k, smem_bytes
from kernels.registry import families_for
from tilewright import Config, GemmProblem
from tilewright.artifact import Workspace
from tuner.search.points import valid_points

# (problem, knobs, bytes): ring + activations + partials + inboxes of a cluster + barriers + alignment.
# Barriers are 2 a stage of the ring, 1 a stage of the activations and 2 of a cluster.
SMEM = [
    # 4 stages of 4 boxes of 2 KiB; 64 k chunks of one row, 16 stages; 4 warps of 1 x (16 + 4) floats.
    (DECODE, {}, 4 * 4 * 2048 + 64 * 128 + 4 * 20 * 4 + (2 * 4 + 16) * 8 + 1024),
    # 224 k chunks in a cluster of 4, 56 each, 7 stages, 16 rows; boxes of 32 rows, 2 a warp.
    (SIXTEEN, {"cluster_k": 4, "warp_tiles": 2, "k_chunks": 2, "stages": 2},
     2 * 8 * 4096 + 56 * 16 * 128 + 4 * 16 * 36 * 4 + 2 * 32 * 16 * 4 + (2 * 2 + 7 + 2) * 8 + 1024),
    # In a cluster of 8 28, 4 stages of which the last is half empty; two inboxes of 32 x 16 floats.
    (SIXTEEN, {"cluster_k": 8, "warps": 8, "warp_tiles": 2},
     4 * 8 * 4096 + 28 * 16 * 128 + 8 * 16 * 36 * 4 + 2 * 32 * 16 * 4 + (2 * 4 + 4 + 2) * 8 + 1024),
    # 1000 elements of 2 bytes are 16 k chunks, 2 stages; 3 rows take 4.
    (TALL, {"warps": 8}, 4 * 8 * 2048 + 16 * 4 * 128 + 8 * 4 * 20 * 4 + (2 * 4 + 2) * 8 + 1024),
    # 8192 bytes are 64 k chunks, in 16 stages; 5 rows take 8.
    (INTEGERS, {}, 4 * 4 * 2048 + 64 * 8 * 128 + 4 * 8 * 20 * 4 + (2 * 4 + 16) * 8 + 1024),
    # In a cluster of 4 16, which are no whole stage of 32; two tiles of 16 x 8 integers.
    (INTEGERS, {"cluster_k": 4, "warps": 8, "k_chunks": 4, "stages": 2},
     2 * 32 * 2048 + 16 * 8 * 128 + 8 * 8 * 20 * 4 + 2 * 16 * 8 * 4 + (2 * 2 + 1 + 2) * 8 + 1024),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "changes", "expected"), every(2, SMEM))
def test_shared_memory_is_what_the_source_lays_out(problem, changes, expected) -> None:
    config = config_of(**changes)
    assert GEMV_TMA.why_invalid(config, problem, H200) is None
    knobs, plan = GEMV_TMA.knob_values(config), GEMV_TMA.plan(config, problem, H200)
    assert smem_bytes(knobs, problem) == plan.dynamic_smem == expected
    spec = GEMV_TMA.build_spec(config, problem, H200)
    held = f'static_assert(SharedMemory::bytes == {expected - 1024}, "as planned");'
    begun = f'static_assert(cfg::threads + 32 == {plan.block[0]}, "as planned");'
    source = f"{(SOURCES / spec.source).read_text()}\n{held}\n{begun}\n"
    compile_text(source, spec.target, spec.defines, entry=spec.entry, name=spec.source)
    assert compile_spec(spec).resources.static_smem == 0


@pytest.mark.parametrize("parts", CLUSTERS)
def test_a_k_partition_is_whole_k_chunks_and_the_slice_holds_the_longest(parts) -> None:
    config = Knobs(1, 4, 1, cluster_k=parts)
    for k in (8, 64, 72, 4096, 4104, 14336):
        problem = GemmProblem(1, 64, k)
        chunks = -(-k // 64)
        ends = [chunks * part // parts for part in range(parts + 1)]  # as Scheduler::work_tile has them
        longest = max(after - before for before, after in itertools.pairwise(ends))
        assert activation_k_chunks(config, problem) == longest
        assert max_k(config, problem) == parts * longest * 64 >= k


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_no_other_k_has_longer_partitions(dtype) -> None:
    problem = GemmProblem(16, 4096, 14336, dtype=dtype)
    elements = 128 // problem.dtype.size
    for parts in CLUSTERS:
        config = Knobs(1, 4, 1, cluster_k=parts)
        held = activation_k_chunks(config, problem)
        most = max_k(config, problem) // elements
        assert -(-most // parts) == held
        assert -(-(most + 1) // parts) == held + 1


def test_a_plan_serves_no_longer_k() -> None:
    problem = dataclasses.replace(DECODE, k=4160)
    plan = GEMV_TMA.plan(config_of(cluster_k=4), problem, H200)
    # 65 k chunks in four partitions of at most 17.
    assert plan.preconditions.max_k == 4 * 17 * 64
    assert plan.why_not(dataclasses.replace(problem, k=4 * 17 * 64)) is None
    assert plan.why_not(dataclasses.replace(problem, m=40, n=8)) is None  # in more tiles
    assert "k must be at most 4352" in (plan.why_not(dataclasses.replace(problem, k=4360)) or "")


@pytest.mark.parametrize(
    ("cluster_k", "k", "most"),
    [(2, 4096, 4096), (8, 4096, 4096), (2, 4104, 2 * 33 * 64), (8, 4104, 8 * 9 * 64), (8, 8, 8 * 64)],
)
def test_a_plan_serves_the_k_that_a_cluster_holds(cluster_k, k, most) -> None:
    """4096 are 64 k chunks, 8 for each of 8 CTAs; with one more the longest partition has 9, or 33 of 2."""
    plan = GEMV_TMA.plan(config_of(cluster_k=cluster_k), GemmProblem(1, 64, k), H200)
    assert plan.preconditions.max_k == most


@pytest.mark.parametrize(
    ("problem", "tile", "weights"), [(LARGE, (16, 32), "b"), (TALL, (32, 4), "a")], ids=str
)
def test_the_plan(problem, tile, weights) -> None:
    config = config_of(warp_tiles=2)
    plan = GEMV_TMA.plan(config, problem, H200)
    assert (plan.grid.tile_m, plan.grid.tile_n) == tile
    assert (plan.block, plan.cluster) == ((4 * 32 + 32, 1, 1), (1, 1, 1))
    assert (plan.args[0].operand, plan.args[0].box, plan.args[0].swizzle) == (weights, (32, 64), 128)
    assert plan.programmatic


@pytest.mark.parametrize(("cluster_k", "ctas"), [(1, 132), (2, 132), (4, 120), (8, 120)])
@pytest.mark.parametrize("problem", [LARGE, TALL], ids=str)
def test_the_plan_of_clusters(problem, cluster_k, ctas) -> None:
    """Clusters of 4 and 8 do not fill all of 132 SMs; what they exchange needs no workspace."""
    config = config_of(cluster_k=cluster_k, warps=8)
    plan = GEMV_TMA.plan(config, problem, H200)
    assert (plan.block, plan.cluster) == ((8 * 32 + 32, 1, 1), (cluster_k, 1, 1))
    assert plan.grid.ctas(problem) == (ctas, 1, 1)
    assert plan.workspace == Workspace()
    assert dict(GEMV_TMA.build_spec(config, problem, H200).defines)["CLUSTER_K"] == cluster_k


def test_few_work_tiles_are_few_ctas() -> None:
    problem = GemmProblem(2, 100, 4096)
    plan = GEMV_TMA.plan(config_of(cluster_k=4), problem, H200)
    assert plan.grid.ctas(problem) == (7 * 4, 1, 1)


def test_ctas_come_in_whole_clusters() -> None:
    """Of 16 SMs clusters of 4 would fill 14, which are 3 of them, and one of 8."""
    part = dataclasses.replace(H200, sm_count=16)
    for cluster_k, ctas in ((2, 16), (4, 12), (8, 8)):
        plan = GEMV_TMA.plan(config_of(cluster_k=cluster_k), LARGE, part)
        assert plan.grid.ctas(LARGE) == (ctas, 1, 1)


@pytest.mark.parametrize(
    ("changes", "problem", "device", "reason"),
    [
        ({}, GemmProblem(17, 17, 64), H200, "m or n up to 16"),
        ({}, DECODE, A100, "TMA of sm_90"),
        ({}, dataclasses.replace(DECODE, acc_dtype="float16"), H200, "not float16"),
        ({}, GemmProblem(1, 64, 64, dtype="float32"), H200, "not float32"),
        ({}, dataclasses.replace(DECODE, layout="nn"), H200, "layout nt, not nn"),
        ({}, dataclasses.replace(DECODE, k=4095), H200, "multiples of 16 bytes"),
        ({}, SIXTEEN, H200, "458752 hold activations: take a larger cluster"),
        ({"cluster_k": 2}, SIXTEEN, H200, "229376 hold activations: take a larger cluster"),
        ({"cluster_k": 4}, SIXTEEN, H200, None),
        ({"cluster_k": 3}, DECODE, H200, "cluster_k must be one of (1, 2, 4, 8)"),
        ({"warps": 16, "k_chunks": 4, "warp_tiles": 2}, DECODE, H200, "bytes of shared memory"),
        ({}, GemmProblem(16, 64, 1 << 20), H200, "hold activations"),
        ({"prefetch": 4}, DECODE, H200, None),
        ({}, TALL, H200, None),
    ],
    ids=str,
)
def test_problems_and_budgets(changes, problem, device, reason) -> None:
    said = why(changes, problem, device)
    assert said is None if reason is None else reason in (said or "")


def test_a_k_that_no_cluster_holds_is_unsupported() -> None:
    """8 CTAs beside the smallest ring: 232448 - 2 * 8208 - 5120 - 2 * 1032 - 1024 bytes hold 101 k chunks of
    2048 and their 26 barriers, which leaves 768."""
    longest = 8 * 101 * 64
    assert "gemv_tma" in families_for(GemmProblem(16, 4096, longest), H200)
    assert "gemv_tma" not in families_for(GemmProblem(16, 4096, longest + 64), H200)
    assert GEMV_TMA.heuristic_configs(GemmProblem(16, 4096, longest), H200)
    assert list(valid_points(GEMV_TMA, GemmProblem(16, 4096, longest), H200))


def test_a_config_from_before_clusters_is_completed() -> None:
    """`lockstep` went as `cluster_k` came; a current or a broken config keeps the knobs that it has."""
    shared = {name: value for name, value in BASE.items() if name != "cluster_k"}
    stored = Config.of("stream", shared | {"lockstep": 1})
    assert "exactly the knobs" in (GEMV_TMA.why_invalid(stored, DECODE, H200) or "")
    completed = registry.completed(stored)
    assert completed.family == "gemv_tma"
    assert dict(completed.knobs) == shared | {"cluster_k": 1}
    assert GEMV_TMA.why_invalid(completed, DECODE, H200) is None
    pair = config_of(cluster_k=2)
    assert GEMV_TMA.completed(pair) == pair
    del shared["warps"]
    assert dict(GEMV_TMA.completed(Config.of("gemv_tma", shared)).knobs) == shared


@pytest.mark.parametrize(
    "removed",
    [{"hint": "normal"}, {"hint": "evict_first"}, *({"l2_promotion": x} for x in (0, 64, 128, 256))],
    ids=str,
)
def test_a_config_with_a_removed_knob_is_completed(removed) -> None:
    """The L2 treats weights alike whatever was stored: no value of these knobs won a race."""
    stored = Config.of("gemv_tma", BASE | removed)
    assert GEMV_TMA.completed(stored) == config_of()


def test_a_config_that_split_k_stays_as_it_was() -> None:
    """No config with splits won a race: the knob went, and one CTA a tile is what remains."""
    assert GEMV_TMA.completed(Config.of("gemv_tma", BASE | {"split_k": 1})) == config_of()
    split = Config.of("gemv_tma", BASE | {"split_k": 4})
    assert GEMV_TMA.completed(split) == split
    assert "exactly the knobs" in (GEMV_TMA.why_invalid(split, DECODE, H200) or "")
