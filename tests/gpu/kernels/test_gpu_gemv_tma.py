"""Family gemv_tma: every knob at awkward sizes, against exact integers and float64."""

from __future__ import annotations

import dataclasses
import random

import gate
import numpy
import pytest
from gpu_samples import SIZE, STEPS, readings, rotation

from kernels.gemv_tma.config import CLUSTERS, Knobs
from kernels.gemv_tma.family import GEMV_TMA
from tilewright import Config, GemmProblem
from tuner.devices.base import Tensors
from tuner.measure.correctness import check
from tuner.measure.operands import bind, make_tensors

TYPES = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]
BASE = dataclasses.asdict(Knobs(stages=4))
CLUSTERED = [{"cluster_k": ctas} for ctas in CLUSTERS if ctas > 1]


def config(**knobs: int | str) -> Config:
    return Config.of("gemv_tma", {**BASE, **knobs})


def wrong(device, knobs: dict[str, int | str], problem: GemmProblem) -> str | None:
    return gate.wrong(device, GEMV_TMA, config(**knobs), problem)


@pytest.mark.parametrize("partitions", [{}, *CLUSTERED], ids=str)
@pytest.mark.parametrize("few", [1, 2, 3, 4, 5, 8, 9, 15, 16])
def test_every_number_of_activation_rows_on_either_side(hopper, few, partitions) -> None:
    """Weight rows that are no multiple of a tile, and activation rows below and at their tile. CTAs of a
    cluster finish 2 to 256 values each, of tiles of 16 x 1 to 32 x 16."""
    twice = {**partitions, "warp_tiles": 2}
    for many in (1, 15, 17, 257):
        assert wrong(hopper, partitions, GemmProblem(few, many, 520)) is None
        assert wrong(hopper, twice, GemmProblem(many, few, 264, dtype="bfloat16")) is None


@pytest.mark.parametrize("k", [8, 56, 64, 72, 256, 264, 1000, 4088])
@pytest.mark.parametrize("partitions", [{}, *({**one, "stages": 2} for one in CLUSTERED)], ids=str)
def test_every_depth(hopper, partitions, k) -> None:
    """Fractions of a k chunk, of a stage, of the ring; CTAs of a cluster without a k chunk."""
    for size in ((1, 16), (3, 104), (16, 304)):
        assert wrong(hopper, partitions, GemmProblem(*size, k)) is None


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type(hopper, dtype) -> None:
    for size in ((1, 304, 4096), (16, 160, 1040), (96, 5, 144)):
        for partitions in ({}, {"cluster_k": 2}, {"cluster_k": 8}):
            assert wrong(hopper, partitions, GemmProblem(*size, dtype=dtype)) is None


VARIANTS = [
    *({"warps": x, "k_chunks": y, "stages": 2} for x in (4, 8, 16) for y in (1, 2)),
    {"k_chunks": 4},
    {"k_chunks": 4, "cluster_k": 2},
    {"warps": 8, "cluster_k": 4, "stages": 3},
    {"warps": 16, "cluster_k": 8, "stages": 2},
    {"warps": 16, "warp_tiles": 2, "stages": 2, "cluster_k": 2},
    {"warps": 8, "warp_tiles": 2, "stages": 2, "cluster_k": 2},
    {"warps": 16, "warp_tiles": 2, "stages": 2, "cluster_k": 8},
    *({"stages": x} for x in (2, 3, 5, 7, 16)),
    *CLUSTERED,
    {"prefetch": 2},
    {"prefetch": 4, "k_chunks": 4},
    {"prefetch": 4, "k_chunks": 4, "cluster_k": 2},
    {"prefetch": 2, "cluster_k": 8},
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_knob_of_gemv_tma(hopper, variant) -> None:
    for size in ((1, 520, 1000), (16, 519, 2056), (304, 5, 520)):
        assert wrong(hopper, variant, GemmProblem(*size)) is None


@pytest.mark.parametrize(
    "partitions", [{}, *CLUSTERED, {"cluster_k": 2, "warps": 8, "warp_tiles": 2}], ids=str
)
def test_ctas_of_many_work_tiles(hopper, partitions) -> None:
    """More work tiles than CTAs: rings run on from one to the next, partials, inboxes and barriers are
    used again. Batches that do not divide the number of CTAs or clusters load the activations anew: 3 divide
    132 of them, 66, 30 and 15, and 7 none."""
    for size in ((2, 16 * 132 * 3 + 8, 136), (8192, 16, 520), (16, 2064, 2056)):
        for batch in (1, 3, 7):
            assert wrong(hopper, partitions, GemmProblem(*size, batch=batch)) is None


EPILOGUES = [
    {"out_dtype": "float32"},
    {"has_bias": True, "activation": "relu"},
    {"has_c": True, "activation": "gelu", "has_bias": True},
    {"batch": 3},
    {"batch": 2, "has_c": True},
]


@pytest.mark.parametrize("extra", EPILOGUES, ids=str)
def test_gemv_tma_epilogues(hopper, extra) -> None:
    for size in ((4, 132, 520), (257, 13, 96)):
        for partitions in ({}, *CLUSTERED):
            problem = GemmProblem(*size, dtype="bfloat16", **extra)
            assert wrong(hopper, partitions, problem) is None


@pytest.mark.parametrize("partitions", [{}, *CLUSTERED], ids=str)
def test_an_artifact_serves_other_extents(hopper, partitions) -> None:
    """More activation rows than a tile has are more tiles; k may be shorter, or longer up to what is held."""
    built_for = GemmProblem(8, 512, 1032)
    kernel = gate.built(hopper, GEMV_TMA, config(**partitions), built_for)
    longest = GEMV_TMA.plan(config(**partitions), built_for, hopper.spec).preconditions.max_k
    assert longest > 1032
    for m, n, k in ((40, 512, 1032), (21, 2600, 64), (8, 64, longest), (40, 2600, longest - 8), (1, 8, 8)):
        assert check(hopper, kernel, dataclasses.replace(built_for, m=m, n=n, k=k)) is None
    kernel.close()


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"stages": 3, "batch": 2},
        {"cluster_k": 2},
        {"cluster_k": 8},
        {"cluster_k": 2, "warps": 8, "warp_tiles": 2, "batch": 5},
        {"cluster_k": 8, "stages": 2, "batch": 7},
        {"warps": 16, "stages": 2, "warp_tiles": 2, "cluster_k": 2},
        {"prefetch": 4},
    ],
    ids=str,
)
def test_many_runs_give_the_same_bits(hopper, knobs) -> None:
    """A stage refilled too early, or partials or an inbox overwritten before they were read show as a rare
    difference."""
    knobs = dict(knobs)
    problem = GemmProblem(16, 6144, 2048, batch=knobs.pop("batch", 1))
    kernel = gate.built(hopper, GEMV_TMA, config(**knobs), problem)
    tensors = make_tensors(hopper, problem, 1, "normal")
    bound = bind(hopper, kernel, problem, [tensors])
    bound.launches[0]()
    hopper.synchronize()
    first = tensors.d.copy()
    for _ in range(300):
        tensors.d.fill(0)
        hopper.xp.cuda.get_current_stream().synchronize()
        bound.launches[0]()
        hopper.synchronize()
        assert bool((tensors.d == first).all())
    kernel.close()


READ_EARLY = [
    {"prefetch": 4},
    {"prefetch": 2, "warps": 8},
    {"prefetch": 4, "cluster_k": 2},
    {"prefetch": 2, "cluster_k": 8},
]


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("knobs", READ_EARLY, ids=str)
def test_weights_that_the_kernel_before_wrote(hopper, knobs, side) -> None:
    """Weights are rotated by one column a launch; the kernel must read the newest ones."""
    problem = GemmProblem(16, SIZE, SIZE) if side == "B" else GemmProblem(SIZE, 16, SIZE)
    kernel = gate.built(hopper, GEMV_TMA, config(**knobs), problem)
    first = random.Random(side).randrange(SIZE - 16)
    few = numpy.eye(SIZE, dtype="float16")[None, first : first + 16].copy()
    for start, seen in readings(hopper, kernel, problem, few):
        for step, part in enumerate(seen):
            columns = numpy.roll(start, step + 1, axis=2)[:, :, first : first + 16]
            expected = columns.transpose(0, 2, 1) if side == "B" else columns
            assert numpy.array_equal(part, expected)
    kernel.close()


@pytest.mark.parametrize(
    "knobs", [{"prefetch": 4}, {"prefetch": 4, "cluster_k": 2}, {"cluster_k": 8}], ids=str
)
def test_each_kernel_reads_what_the_one_before_wrote(hopper, knobs) -> None:
    """The activations are rotated by one column a launch, in three buffers; stale rows lag behind."""
    problem = GemmProblem(16, SIZE, SIZE)
    kernel = gate.built(hopper, GEMV_TMA, config(**knobs), problem)
    rotated = hopper.xp.ascontiguousarray(rotation(hopper).transpose(0, 2, 1))  # B is stored N x K
    buffers = [hopper.xp.zeros((1, 16, SIZE), dtype="float16") for _ in range(3)]
    sets = [Tensors(buffers[step % 3], rotated, buffers[(step + 1) % 3]) for step in range(STEPS)]
    bound = bind(hopper, kernel, problem, sets)
    replay = hopper.timer(bound.launches)
    for seed in range(10):
        start = numpy.random.default_rng(seed).standard_normal((1, 16, SIZE)).astype("float16")
        buffers[0][:] = hopper.xp.asarray(start)
        hopper.xp.cuda.get_current_stream().synchronize()
        replay()
        assert numpy.array_equal(buffers[STEPS % 3].get(), numpy.roll(start, STEPS, axis=2))
    kernel.close()
