"""Kernels whose work is ordered by GPC: the order found, and results whatever the order."""

from __future__ import annotations

import random

import gate
import pytest
from gpu_samples import WGMMA_WS_BASE

from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, GemmProblem
from tilewright.launch import cta_order
from tuner.measure.correctness import check
from tuner.measure.operands import bind, make_tensors, scratch

SQUARE = GemmProblem(1024, 1024, 512)
SMALL_TILE = {"tile_m": 64, "tile_n": 64, "consumers_m": 1}
VARIANTS = [
    {"cluster_n": 2},
    {"cluster_m": 2, "raster": "n", "swizzle_size": 4, "snake": 1},
    {"cluster_m": 2, "cluster_n": 2},
    {"cluster_m": 2, "split_k": 4, "reduction": "kernel"},
    {"cluster_m": 2, "split_k": 4, "reduction": "reduce_scatter"},
    {"cluster_n": 2, "split_k": 3, "reduction": "kernel"},
    {"cluster_n": 2, "schedule": "pingpong", "consumers_m": 1},
    {"cluster_k": 2},
    {"cluster_m": 2, **SMALL_TILE, "reverse_k": 1},
    {"cluster_m": 2, "tile_n": 256, "stages": 3, "reverse_k": 1},
]


def config(**knobs: int | str) -> Config:
    return Config.of("wgmma_ws", {**WGMMA_WS_BASE, "cta_order": "gpc", **knobs})


def order_of(device, config: Config, problem: GemmProblem) -> list[int]:
    kernel = gate.built(device, WGMMA_WS, config, problem)
    plan = kernel.artifact.plan
    entry = "probe_sm_ids"
    order = list(cta_order.CTA_ORDERS.order(kernel.other, entry, plan, problem))
    kernel.close()
    return order[: plan.grid.ctas(problem)[0] // plan.cluster[0]]


@pytest.fixture
def fresh(hopper):
    """The CTA orders of a new process: none is known yet."""
    hopper.synchronize()
    cta_order.CTA_ORDERS.forget()
    yield cta_order.CTA_ORDERS
    cta_order.CTA_ORDERS.forget()


@pytest.mark.parametrize("knobs", [{"cluster_n": 2}, {"cluster_m": 2, "cluster_n": 2}], ids=str)
def test_the_order_is_found_and_found_again(hopper, fresh, knobs) -> None:
    """On an idle GPU clusters are placed alike, so there is an order, and it is not that of their numbers.

    Now and then a launch lies otherwise, so this looks three times, as cta_order() does.
    """
    large = GemmProblem(4096, 4096, 512)
    found = order_of(hopper, config(**knobs), large)
    assert sorted(found) == list(range(len(found)))
    assert found != list(range(len(found)))
    assert len(fresh._orders) == 1
    looks = []
    for _ in range(3):
        fresh.forget()
        looks.append(order_of(hopper, config(**knobs), large))
    assert found in looks


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_way_to_divide_the_work(hopper, variant) -> None:
    for size in ((1024, 1024, 512), (1000, 904, 520), (136, 2568, 1032)):
        for batch in (1, 3):
            problem = GemmProblem(*size, batch=batch)
            assert gate.wrong(hopper, WGMMA_WS, config(**variant), problem) is None


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.usefixtures("fresh")
def test_any_order_is_right(hopper, monkeypatch, variant) -> None:
    """The GPU may place CTAs on other SMs: only the time may depend on it."""

    def shuffled(_where, _by_gpc, ctas: int, cluster: int) -> list[int]:
        order = list(range(ctas // cluster))
        random.Random(ctas).shuffle(order)
        return order

    monkeypatch.setattr(cta_order, "cluster_order", shuffled)
    assert gate.wrong(hopper, WGMMA_WS, config(**variant), SQUARE) is None


def test_a_gpu_that_gives_no_order_runs_as_numbered(hopper, fresh, monkeypatch) -> None:
    monkeypatch.setattr(cta_order, "cluster_order", lambda *_: None)
    assert order_of(hopper, config(cluster_n=2), SQUARE) == list(range(32))
    assert fresh._orders == {}
    assert gate.wrong(hopper, WGMMA_WS, config(cluster_n=2), SQUARE) is None


def test_a_gpu_without_room_is_waited_for_a_moment_only(hopper, fresh, monkeypatch) -> None:
    monkeypatch.setattr(cta_order, "_PATIENCE_S", 0.0)
    assert order_of(hopper, config(cluster_n=2), SQUARE) == list(range(32))
    assert fresh._orders == {}
    hopper.synchronize()
    assert gate.wrong(hopper, WGMMA_WS, config(cluster_n=2), SQUARE) is None


def test_an_order_is_found_while_a_graph_is_captured(hopper, fresh) -> None:
    cupy = hopper.xp
    kernel = gate.built(hopper, WGMMA_WS, config(cluster_n=2), SQUARE)
    tensors = make_tensors(hopper, SQUARE, 1, "integer")
    workspace = scratch(hopper, [kernel], SQUARE)
    stream = cupy.cuda.Stream(non_blocking=True)
    hopper.synchronize()
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        bound = bind(hopper, kernel, SQUARE, [tensors], workspace)
        bound.launches[0](stream.ptr)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert len(fresh._orders) == 1
    assert bool((tensors.d == (tensors.a @ tensors.b.transpose(0, 2, 1)).astype(tensors.d.dtype)).all())
    kernel.close()


def test_an_order_serves_other_extents_too(hopper) -> None:
    kernel = gate.built(hopper, WGMMA_WS, config(cluster_m=2, **SMALL_TILE), SQUARE)
    for m, n in ((1024, 1024), (2048, 512), (8448, 64), (1920, 8192), (128, 128)):
        assert check(hopper, kernel, GemmProblem(m, n, 512)) is None
    kernel.close()


@pytest.mark.parametrize("knobs", VARIANTS[:5], ids=str)
def test_the_bits_do_not_depend_on_the_order(hopper, knobs) -> None:
    problem = GemmProblem(512, 512, 4096)
    tensors = make_tensors(hopper, problem, 1, "normal")
    seen = []
    for order in ("free", "gpc"):
        kernel = gate.built(hopper, WGMMA_WS, config(**{**knobs, "cta_order": order}), problem)
        tensors.d.fill(0)
        bound = bind(hopper, kernel, problem, [tensors])
        bound.launches[0]()
        hopper.synchronize()
        seen.append(tensors.d.copy())
        kernel.close()
    assert bool((seen[0] == seen[1]).all())


def test_an_artifact_serves_other_extents(hopper, fresh) -> None:
    """Fewer or more CTAs have an order of their own; CTAs that wait for each other run in waves."""
    kernel = gate.built(hopper, WGMMA_WS, config(cluster_n=2), SQUARE)
    for m, n in ((128, 256), (2000, 4000), (8192, 512)):
        assert check(hopper, kernel, GemmProblem(m, n, 512)) is None
    assert len(fresh._orders) == 2  # one cluster, and as many as fit
    kernel.close()
    kernel = gate.built(hopper, WGMMA_WS, config(cluster_m=2, split_k=4, reduction="reduce_scatter"), SQUARE)
    assert check(hopper, kernel, GemmProblem(2048, 2048, 512)) is None
    kernel.close()
