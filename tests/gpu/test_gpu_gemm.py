"""GEMMs on request: pinned memory that serves again, the vendor's own choice remembered, one timed launch."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
from gate import built

from kernels.mma_sync.family import MMA_SYNC
from tilewright import GemmProblem
from tilewright.errors import DeviceUnavailable, InvalidProblem
from tuner.measure.operands import bind, make_tensors
from tuner.workers.gemm import Gemms
from tuner.workers.shared_memory import Pages

PROBLEM = GemmProblem(512, 384, 256, activation="relu", has_bias=True)


@pytest.fixture
def cublaslt():
    return pytest.importorskip("tuner.devices.cublaslt")


def draw(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and the bias of ``PROBLEM``, of small integers."""
    random = np.random.default_rng(seed)
    shapes = (PROBLEM.a_shape, PROBLEM.b_shape, (PROBLEM.n,))
    return tuple(random.integers(-2, 3, shape).astype("float16") for shape in shapes)  # type: ignore[return-value]


def product(device, choice, tensors):
    """What a vendor's algorithm makes of D."""
    tensors.d.fill(7)
    device.synchronize()  # launches have a stream of their own
    device.once(choice.launches[0])
    return tensors.d.copy()


def test_requests_one_after_the_other_on_the_same_memory(device) -> None:
    """Each gets its own product, by the vendor library and by a tuned kernel; the memory is pinned once."""
    kernel = built(device, MMA_SYNC, MMA_SYNC.heuristic_configs(PROBLEM, device.spec)[0], PROBLEM)
    gemms = Gemms(device)
    with Pages() as body, Pages() as result:
        for seed, which in enumerate([None, kernel, None, kernel]):
            a, b, bias = draw(seed)
            body.resize(0)
            for operand in (a, b, bias):
                body.append(operand.tobytes())
            sizes = a.nbytes, b.nbytes, bias.nbytes
            starts = 0, a.nbytes, a.nbytes + b.nbytes
            parts = zip(("a", "b", "bias"), starts, sizes, strict=True)
            regions = {name: body.region.part(start, size) for name, start, size in parts}
            regions["d"] = result.resize(2 * PROBLEM.m * PROBLEM.n)
            run = gemms.run(which, PROBLEM, regions, (1.0, 0.0))
            expected = np.maximum(a.astype("f4") @ b.astype("f4").T + bias.astype("f4"), 0)
            d = np.frombuffer(result.read(0, regions["d"].size), "float16").reshape(PROBLEM.m, PROBLEM.n)
            assert (d == expected.astype("float16")).all()
            assert 0 < run.micros < 1e5
            assert list(run.parts_s) == ["map", "upload", "bind", "launch", "download"]
        kept = gemms._mappings._kept
        assert [one.pinned for one in kept] == [True, True]
    gemms.trim()
    assert not gemms._mappings._kept


def test_factors_of_0_read_nothing(device) -> None:
    """NaN in A and B does not show with alpha = 0, by the vendor library or by a kernel."""
    problem = dataclasses.replace(PROBLEM, has_c=True)
    kernel = built(device, MMA_SYNC, MMA_SYNC.heuristic_configs(problem, device.spec)[0], problem)
    a, b, bias = draw(0)
    c = (np.arange(problem.m * problem.n) % 64).astype("float16").reshape(problem.m, problem.n)
    operands = {"a": a * np.nan, "b": b * np.nan, "c": c, "bias": bias}
    gemms = Gemms(device)
    with Pages() as body, Pages() as result:
        regions, start = {}, 0
        for operand in operands.values():
            body.append(operand.tobytes())
        for name, operand in operands.items():
            regions[name], start = body.region.part(start, operand.nbytes), start + operand.nbytes
        regions["d"] = result.resize(2 * problem.m * problem.n)
        for which in (None, kernel):
            run = gemms.run(which, problem, regions, (0.0, -2.0))
            d = np.frombuffer(result.read(0, regions["d"].size), "float16").reshape(problem.m, problem.n)
            assert (d == np.maximum(bias - 2 * c, 0)).all()
            assert run.ran == "elementwise"
    gemms.close()


def test_memory_that_cannot_be_pinned_is_copied_nevertheless(device) -> None:
    memory = np.arange(2**20, dtype="float32")
    assert device.pin(memory)
    assert not device.pin(memory)  # it is already
    device.unpin(memory)
    made = device.upload(memory)
    back = np.empty_like(memory)
    device.download(made, back)
    assert (back == memory).all()


@pytest.mark.parametrize("extent", [512, 4096])
@pytest.mark.alone
def test_one_launch_takes_what_a_graph_says(device, extent) -> None:
    """Two events around it do not time the CPU: within a tenth and 2 us of the median of graphs."""
    problem = GemmProblem(extent, extent, extent)
    kernel = built(device, MMA_SYNC, MMA_SYNC.heuristic_configs(problem, device.spec)[0], problem)
    bound = bind(device, kernel, problem, [make_tensors(device, problem, 0, "normal")])
    launch = bound.launches[0]
    replay = device.timer([launch])
    for _ in range(20):
        replay()
    by_graph = sorted(replay() for _ in range(21))[10]
    at_once = sorted(device.once(launch) for _ in range(21))[10]
    assert abs(at_once - by_graph) < 0.1 * by_graph + 2.0, (at_once, by_graph)


def test_the_vendor_default_is_its_first_choice(device, cublaslt, monkeypatch) -> None:
    asked = []
    heuristics = cublaslt.Matmul.heuristics
    monkeypatch.setattr(cublaslt.Matmul, "heuristics", lambda *given: asked.append(1) or heuristics(*given))
    monkeypatch.setattr(cublaslt, "_plans", {})
    for seed in range(3):
        tensors = make_tensors(device, PROBLEM, seed, "normal")
        chosen = product(device, device.vendor_default(PROBLEM, tensors), tensors)
        first = product(device, cublaslt.choices(PROBLEM, [tensors], device.spec)[0], tensors)
        assert (chosen == first).all()  # with its own bias each time
    # Nine for each list of choices, one for the default of all three.
    assert len(asked) == 3 * 9 + 1
    for m in range(1, 40):
        problem = dataclasses.replace(PROBLEM, m=8 * m)
        device.once(device.vendor_default(problem, make_tensors(device, problem, 0, "normal")).launches[0])
    assert len(cublaslt._plans) == 32
    assert device.vendor_default(GemmProblem(64, 64, 64, dtype="uint8"), tensors) is None


def test_descriptors_are_destroyed(device, cublaslt, monkeypatch) -> None:
    from tuner.devices import cublaslt_matmul

    destroyed = []
    gc.collect()
    for name in ("matmul_desc_destroy", "matrix_layout_destroy"):
        destroy = getattr(cublaslt_matmul.cublasLt, name)
        monkeypatch.setattr(
            cublaslt_matmul.cublasLt, name, lambda handle, d=destroy, n=name: destroyed.append(n) or d(handle)
        )
    sets = [make_tensors(device, PROBLEM, seed, "normal") for seed in range(2)]
    choices = cublaslt.choices(PROBLEM, sets, device.spec)
    choices[0].launches[1]()
    device.synchronize()
    last = choices[0].launches[1]
    del choices
    gc.collect()
    assert destroyed == []
    del last
    gc.collect()
    assert destroyed == ["matmul_desc_destroy"] * 2 + ["matrix_layout_destroy"] * 3


def test_a_wrong_request_leaves_the_device_alone(device) -> None:
    sizes = {"a": 2 * 512 * 256, "b": 2 * 384 * 256, "bias": 2 * 384, "d": 5}
    with Pages() as pages:
        whole = pages.resize(2**20)
        regions = {name: whole.part(0, size) for name, size in sizes.items()}
        with pytest.raises(InvalidProblem, match="d must have"):
            Gemms(device).run(None, PROBLEM, regions, (1.0, 0.0))  # maps nothing
    device.synchronize()


def test_a_gpu_without_kernels_is_told_the_supported_ones(device, monkeypatch) -> None:
    monkeypatch.setattr(device, "spec", dataclasses.replace(device.spec, arch="sm_75"))
    with pytest.raises(DeviceUnavailable, match="no kernels for sm_75; use one of sm_80, "):
        device._bare("another", "")
