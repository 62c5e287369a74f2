"""What family gemv_tma searches and tries first: clusters, rings, tiles."""

from __future__ import annotations

import dataclasses

import pytest
from gemv_tma_samples import DECODE, H200, INTEGERS, LARGE, QUERIES, SIXTEEN, knobs_of

from kernels.gemv_tma.config import Knobs
from kernels.gemv_tma.family import GEMV_TMA
from kernels.gemv_tma.heuristics import SEARCH_RULES, why_cluster
from kernels.gemv_tma.layout import balance
from tilewright import GemmProblem
from tuner.search.points import valid_points


def with_k(problem: GemmProblem, k: int) -> GemmProblem:
    return dataclasses.replace(problem, k=k)


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ({}, 1792 / (14 * 132)),  # 28672 rows are 1792 tiles, 13.6 a CTA: 14 rounds, the last not full
        ({"cluster_k": 2}, 1792 * 2 / (28 * 132)),  # 66 clusters: 27.2 rounds
        ({"cluster_k": 4}, 1792 * 4 / (60 * 120)),  # 30 clusters: 59.7 rounds
        ({"cluster_k": 8}, 1792 * 8 / (120 * 120)),  # 15 clusters: 119.5 rounds
    ],
    ids=str,
)
def test_balance(partitions, expected) -> None:
    """Relative to the SMs that clusters can fill."""
    assert balance(Knobs(1, 4, 1, **partitions), LARGE, H200) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("k", "problem", "worth"),
    [
        (Knobs(1, 4, 1), DECODE, True),
        (Knobs(1, 4, 1, cluster_k=2), DECODE, False),  # 8 KiB in all
        (Knobs(2, 8, 1, cluster_k=2), DECODE, True),  # a pair of wide tiles needs no more
        (Knobs(2, 8, 1, cluster_k=4), DECODE, False),
        (Knobs(1, 4, 1, cluster_k=2), with_k(DECODE, 14336), True),  # 28 KiB
        (Knobs(1, 4, 1, cluster_k=2), with_k(DECODE, 14208), False),  # 27.75 KiB
        (Knobs(1, 4, 1, cluster_k=8), QUERIES, True),  # 16 KiB each
        (
            Knobs(1, 4, 1, cluster_k=8),
            with_k(QUERIES, 8 * 7 * 64),
            True,
        ),  # 14 KiB each
        (
            Knobs(1, 4, 1, cluster_k=8),
            with_k(QUERIES, 8 * 6 * 64),
            False,
        ),  # 12 KiB each
        (
            Knobs(1, 4, 1, cluster_k=4),
            with_k(QUERIES, 8 * 6 * 64),
            True,
        ),  # 24 KiB each
    ],
    ids=str,
)
def test_clusters_are_tried_if_half_as_many_ctas_would_hold_28_kib(k, problem, worth) -> None:
    assert (why_cluster(k, problem, H200) is None) is worth


@pytest.mark.parametrize(
    ("k", "problem", "worth"),
    [
        # 28 k chunks of 128 bytes are 56 KiB of 16 rows, 112 of 32; in 4 CTAs 56 are 112 of 16.
        (Knobs(1, 8, 1, cluster_k=8), SIXTEEN, False),
        (Knobs(2, 8, 1, cluster_k=8), SIXTEEN, True),
        (Knobs(1, 8, 1, cluster_k=4), SIXTEEN, True),
        # 30 k chunks of 16 rows are 60 KiB, 29 are 58; so are 15 of 32 rows 60.
        (Knobs(1, 8, 1, cluster_k=8), with_k(SIXTEEN, 8 * 30 * 64), True),
        (Knobs(1, 8, 1, cluster_k=8), with_k(SIXTEEN, 8 * 29 * 64), False),
        (Knobs(2, 8, 1, cluster_k=8), with_k(SIXTEEN, 8 * 15 * 64), True),
        (Knobs(2, 8, 1, cluster_k=8), with_k(SIXTEEN, 8 * 14 * 64), False),
        # Without a cluster there is no such reduction.
        (Knobs(1, 8, 1), DECODE, True),
    ],
    ids=str,
)
def test_clusters_are_tried_if_a_partition_is_60_kib_of_weights(k, problem, worth) -> None:
    reasons = [rule.why(k, problem, H200) or "" for rule in SEARCH_RULES]
    assert any("before the cluster has reduced" in reason for reason in reasons) is not worth


@pytest.mark.parametrize(
    ("problem", "clusters"),
    [
        (GemmProblem(1, 28672, 4096), {1, 2}),
        (QUERIES, {1, 2, 4}),  # in 8 CTAs 32 weight rows are 32 KiB
        (SIXTEEN, {4, 8}),
    ],
    ids=str,
)
def test_searched_clusters(problem, clusters) -> None:
    searched = map(GEMV_TMA.at, valid_points(GEMV_TMA, problem, H200))
    assert {one["cluster_k"] for one in searched} == clusters


@pytest.mark.parametrize(
    ("structure", "problem", "depths"),
    [
        ((1, 4, 1, 1), DECODE, {12, 16}),  # stages of 8 KiB: 16 are the most that are legal
        ((1, 8, 1, 1), DECODE, {6, 8, 10, 12}),
        ((1, 8, 2, 1), DECODE, {3, 4, 5, 6}),
        ((2, 8, 2, 1), DECODE, {2, 3}),  # of 64 KiB
        ((1, 8, 1, 2), QUERIES, {6, 8, 9}),  # 153552 bytes are left beside 64 KiB of activations
        ((1, 8, 1, 1), QUERIES, {5}),  # and 90048 beside 128 KiB
    ],
    ids=str,
)
def test_searched_rings_are_of_four_sizes_or_what_fits(structure, problem, depths) -> None:
    """96, 128, 160 and 192 KiB."""
    names = ("warp_tiles", "warps", "k_chunks", "cluster_k")
    searched = map(GEMV_TMA.at, valid_points(GEMV_TMA, problem, H200))
    assert {one["stages"] for one in searched if tuple(one[name] for name in names) == structure} == depths


@pytest.mark.parametrize(
    ("size", "cluster"),
    [
        ((1, 6144, 4096), 2),
        ((2, 28672, 4096), 2),
        ((4, 4096, 14336), 2),
        ((8, 4096, 14336), 8),
        ((1, 51866, 1280), 1),
    ],
    ids=str,
)
def test_wide_tiles_in_pairs_come_first(size: tuple[int, int, int], cluster: int) -> None:
    """Unless a CTA would have too short a part of k, or the activations need a larger cluster."""
    first = GEMV_TMA.heuristic_configs(GemmProblem(*size, "bfloat16"), H200)[0]
    assert (first["warp_tiles"], first["warps"], first["k_chunks"], first["cluster_k"]) == (2, 8, 1, cluster)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize(
    "size", [(1, 1, 16), (16, 16, 64), (3, 40, 4096), (16, 4096, 14336), (28672, 9, 4096)]
)
def test_every_type_and_size_has_heuristic_configs(size, dtype) -> None:
    problem = GemmProblem(*size, dtype=dtype)
    configs = GEMV_TMA.heuristic_configs(problem, H200)
    assert 1 <= len(configs) <= 8
    assert size[2] < 4096 or len({dict(one.knobs)["warps"] for one in configs}) > 1


@pytest.mark.parametrize(
    ("problem", "cluster_k", "warp_tiles"),
    [
        # 128 KiB of activations leave a ring too little, half of them enough.
        (QUERIES, 2, [2, 2, 2, 1, 1, 1, 1, 1]),
        (GemmProblem(9, 4096, 4096), 2, [2, 2, 2, 1, 1, 1, 1, 1]),
        (dataclasses.replace(QUERIES, m=6144, n=16), 2, [2, 2, 2, 1, 1, 1, 1, 1]),
        # Of 448 KiB a quarter is too much, an eighth is not; 16 weight rows are short: 56 KiB a CTA.
        (SIXTEEN, 8, [2, 2, 2]),
        (GemmProblem(8, 4096, 4096), 1, [2, 1, 1, 1, 1, 1, 2, 2]),
        (dataclasses.replace(LARGE, m=1), 1, [2, 1, 1, 1, 1, 1, 2, 2]),
    ],
    ids=str,
)
def test_heuristic_configs_take_the_smallest_cluster_that_leaves_room_for_a_ring(
    problem, cluster_k, warp_tiles
) -> None:
    picked = knobs_of(problem)
    assert all(one["cluster_k"] == max(cluster_k, one["warp_tiles"]) for one in picked)
    assert [one["warp_tiles"] for one in picked] == warp_tiles
    assert {one["stages"] * GEMV_TMA.knobs_type(**one).stage_bytes for one in picked} == {128 << 10}


def test_a_device_too_small_for_the_largest_clusters_has_heuristic_configs() -> None:
    """8 SMs, of which clusters of 4 or more fill 7: none of 8 finds room."""
    part, problem = dataclasses.replace(H200, sm_count=8), GemmProblem(16, 4096, 8192)
    configs = GEMV_TMA.heuristic_configs(problem, part)
    assert {dict(one.knobs)["cluster_k"] for one in configs} == {4}
    assert all(GEMV_TMA.why_invalid(one, problem, part) is None for one in configs)


def test_heuristic_configs_take_the_most_even_cluster_if_none_keeps_the_sms_busy() -> None:
    """32 tiles: in clusters of 4 128 CTAs in 2 rounds of 120 SMs, in pairs 64 CTAs on 132. 8 CTAs would hold
    too little of the activations to pay."""
    assert {one["cluster_k"] for one in knobs_of(INTEGERS) if one["warp_tiles"] == 2} == {4}


def test_heuristic_configs_prefetch_what_the_l2_does_not_hold_anyway() -> None:
    assert {one["prefetch"] for one in knobs_of(LARGE)} == {2, 4}
    assert {one["prefetch"] for one in knobs_of(GemmProblem(16, 512, 1024))} == {0}
