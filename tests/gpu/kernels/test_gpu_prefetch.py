"""Kernels that bring operands into the L2 while the kernel before still writes them."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import gate
import numpy
import pytest
from gpu_samples import GEMV_BASE, SIZE, SQUARE, STEPS, WGMMA_WS_BASE, readings, rotation

from kernels.base.family import Family
from kernels.gemv.family import GEMV
from kernels.gemv_tma.family import GEMV_TMA
from kernels.mma_sync.family import MMA_SYNC
from kernels.wgmma.family import WGMMA
from kernels.wgmma_ws.config import Knobs as WgmmaWsKnobs
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wgmma_ws.layout import loads_c
from tilewright import Config, GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.operands import bind

ROWS, COLUMNS = GemmProblem(16, SIZE, SIZE, layout="nn"), GemmProblem(SIZE, 16, SIZE, layout="nn")
VARIANTS = [
    {"prefetch": 4},
    {"prefetch": 8, "tile_m": 64, "consumers_m": 1},
    {"prefetch": 16, "stages": 3, "tile_n": 64},
    {"prefetch": 4, "cluster_m": 2, "cluster_n": 2},
    {"prefetch": 4, "split_k": 2, "reduction": "kernel"},
]


def chained(device: Device, family: Family[Any], config: Config, axis: int) -> None:
    """An operand is rotated by one column a launch, in three alternating buffers; stale lines lag behind."""
    kernel = gate.built(device, family, config, SQUARE)
    buffers = [device.xp.zeros((1, SIZE, SIZE), dtype="float16") for _ in range(3)]
    rotated = rotation(device)
    if axis == 1:
        rotated = device.xp.ascontiguousarray(rotated.transpose(0, 2, 1))
    steps = [(buffers[step % 3], buffers[(step + 1) % 3]) for step in range(STEPS)]
    sets = [Tensors(old, rotated, new) if axis == 2 else Tensors(rotated, old, new) for old, new in steps]
    bound = bind(device, kernel, SQUARE, sets)
    replay = device.timer(bound.launches)
    for seed in range(10):
        start = numpy.random.default_rng(seed).standard_normal((1, SIZE, SIZE)).astype("float16")
        buffers[0][:] = device.xp.asarray(start)
        device.xp.cuda.get_current_stream().synchronize()
        replay()
        assert numpy.array_equal(buffers[STEPS % 3].get(), numpy.roll(start, STEPS, axis=axis))
    kernel.close()


@pytest.mark.parametrize("axis", [1, 2], ids=["B", "A"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_each_kernel_reads_what_the_one_before_wrote(hopper, variant, axis) -> None:
    """B is what is fetched early where both operands are of one length."""
    chained(hopper, WGMMA_WS, Config.of("wgmma_ws", {**WGMMA_WS_BASE, **variant}), axis)


@pytest.mark.parametrize("axis", [1, 2], ids=["B", "A"])
@pytest.mark.parametrize("family", [MMA_SYNC, WGMMA], ids=lambda one: one.name)
def test_other_families_wait_for_the_kernel_before(hopper, family, axis) -> None:
    for config in family.heuristic_configs(SQUARE, hopper.spec)[:4]:
        chained(hopper, family, config, axis)


READERS = {
    f"gemv {release} {split_k}": (
        GEMV,
        {**GEMV_BASE, "prefetch": 4, "release": release, "split_k": split_k},
    )
    for release in ("started", "loaded")
    for split_k in (1, 3)
}
READERS["wgmma_ws"] = WGMMA_WS, {**WGMMA_WS_BASE, "tile_n": 64, "prefetch": 4}
READERS |= {family.name: (family, {}) for family in (GEMV_TMA, MMA_SYNC, WGMMA)}


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("problem", [ROWS, COLUMNS], ids=["B", "A"])
@pytest.mark.parametrize("reader", READERS)
def test_weights_that_the_kernel_before_wrote(hopper, reader, problem, layout) -> None:
    """Weights are rotated; rows of the identity times the weights, or the reverse, must be of the newest."""
    family, knobs = READERS[reader]
    problem = dataclasses.replace(problem, layout=layout)
    found = [Config.of(family.name, knobs)] if knobs else family.heuristic_configs(problem, hopper.spec)[:1]
    if not found or family.why_invalid(found[0], problem, hopper.spec):
        pytest.skip(f"{family.name} does not compute {problem}")
    config = found[0]
    wide_b = problem.m < problem.n
    kernel = gate.built(hopper, family, config, problem)
    first = random.Random(reader).randrange(SIZE - 16)
    rows = numpy.eye(SIZE, dtype="float16")[None, first : first + 16]
    few_transposed = problem.layout.a_transposed if wide_b else not problem.layout.b_transposed
    few = numpy.ascontiguousarray(rows.transpose(0, 2, 1) if few_transposed else rows)
    weights_transposed = problem.layout.b_transposed if wide_b else problem.layout.a_transposed
    for start, seen in readings(hopper, kernel, problem, few):
        for step, part in enumerate(seen):
            newest = numpy.roll(start, step + 1, axis=2)
            newest = newest.transpose(0, 2, 1) if weights_transposed else newest
            wanted = newest[:, first : first + 16] if wide_b else newest[:, :, first : first + 16]
            assert numpy.array_equal(part, wanted)
    kernel.close()


@pytest.mark.parametrize("name", ["c", "bias"])
@pytest.mark.parametrize("family", [GEMV, GEMV_TMA, MMA_SYNC, WGMMA, WGMMA_WS], ids=lambda one: one.name)
def test_addends_that_the_kernel_before_wrote(hopper, family, name) -> None:
    """A product of zeros passes C or the bias on, from launch to launch through three buffers."""
    rows = 16 if name == "c" else 1
    problem = GemmProblem(rows, SIZE, SIZE, layout="nt", has_c=name == "c", has_bias=name == "bias")
    xp = hopper.xp
    a, b = (xp.zeros((1, count, SIZE), dtype="float16") for count in (rows, SIZE))
    buffers = [xp.zeros((1, rows, SIZE), dtype="float16") for _ in range(3)]
    pairs = [(buffers[step % 3], buffers[(step + 1) % 3]) for step in range(STEPS)]
    configs = family.heuristic_configs(problem, hopper.spec)[:3]
    if family is WGMMA_WS and name == "c":  # the first ones have SWAP_AB
        assert loads_c(WgmmaWsKnobs(**WGMMA_WS_BASE), problem)
        configs.append(Config.of(family.name, WGMMA_WS_BASE))
    for config in configs:
        kernel = gate.built(hopper, family, config, problem)
        sets = [
            Tensors(a, b, new, c=old, beta=1.0) if name == "c" else Tensors(a, b, new, bias=old.reshape(SIZE))
            for old, new in pairs
        ]
        replay = hopper.timer(bind(hopper, kernel, problem, sets).launches)
        for seed in range(10):
            start = numpy.random.default_rng(seed).standard_normal(buffers[0].shape).astype("float16")
            buffers[0][:] = xp.asarray(start)
            xp.cuda.get_current_stream().synchronize()
            replay()
            assert numpy.array_equal(buffers[STEPS % 3].get(), start), config
        kernel.close()
