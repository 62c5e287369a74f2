"""The client on a GPU: torch tensors and CuPy arrays, streams, graphs, a routed model, and what a call costs.

Kernels are the families' first heuristic configs, compiled here; the tests are about their launch.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import pytest

from kernels.compiler.build import build
from kernels.registry import FAMILIES
from tilewright import GemmProblem
from tilewright.launch import local_device
from tilewright.matmul.matmul import Choice, LocalMatmul

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

tilewright_torch = pytest.importorskip("tilewright.torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Kernels:
    """The first heuristic configs of a family; with ``scratch``, those that need a workspace."""

    def __init__(self, device: Any, family: str = "mma_sync", scratch: bool = False) -> None:
        self._spec, self._family, self._scratch = device.spec, FAMILIES[family], scratch
        self.matmul = LocalMatmul(self.choose)

    def choose(self, problem: GemmProblem, _device: int) -> Choice:
        for family in (self._family, FAMILIES["simt"]):  # which takes every layout
            for config in family.heuristic_configs(problem, self._spec):
                plan = family.plan(config, problem, self._spec)
                if not self._scratch or plan.workspace_bytes(problem):
                    return Choice(build(family, config, problem, self._spec), "exact")
        return Choice(None, "no such config")


@pytest.fixture
def kernels(device: Any) -> Kernels:
    return Kernels(device)


@pytest.fixture
def scratch(device: Any) -> Kernels:
    """Split-K kernels: few tiles, long k."""
    return Kernels(device, scratch=True)


def tensor(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype or torch.float16)


def close(got: Any, expected: Any) -> None:
    """Relative to the size of the result: both round to half precision."""
    got, expected = got.double(), expected.double()
    assert torch.isfinite(got).all()
    assert float((got - expected).norm() / expected.norm()) < 4e-3


def test_the_client_finds_the_class_that_the_tuner_stores(device: Any) -> None:
    assert local_device.device_class(local_device.default_device()) == device.spec.device_class


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layouts_batches_and_leading_dimensions(kernels: Kernels, dtype: str) -> None:
    kind = getattr(torch, dtype)
    rows, turned = tensor(128, 256, dtype=kind), tensor(256, 128, dtype=kind).t()
    columns, weights = tensor(256, 192, dtype=kind), tensor(192, 256, dtype=kind).t()
    for a, b in itertools.product((rows, turned), (columns, weights)):
        close(kernels.matmul(a, b), a.double() @ b.double())
    padded = tensor(128, 512, dtype=kind)[:, 128:384]
    close(kernels.matmul(padded, weights), padded.double() @ weights.double())
    three = tensor(4, 32, 256, dtype=kind)
    close(kernels.matmul(three, weights), three.double() @ weights.double())
    batch = tensor(4, 256, 64, dtype=kind)
    close(kernels.matmul(three, batch), three.double() @ batch.double())
    gaps = tensor(8, 32, 256, dtype=kind)[::2]
    close(kernels.matmul(gaps, batch), gaps.double() @ batch.double())
    assert set(kernels.matmul.stats) == {"tuned: exact"}


def test_epilogues(kernels: Kernels) -> None:
    a, b, bias, c = tensor(128, 256), tensor(256, 192), tensor(192), tensor(128, 192)
    product = a.double() @ b.double()
    close(kernels.matmul(a, b, bias=bias, activation="relu"), torch.relu(product + bias))
    expected = torch.nn.functional.gelu(product + bias, approximate="tanh")
    close(kernels.matmul(a, b, bias=bias, activation="gelu"), expected)
    out = c.clone()
    assert kernels.matmul(a, b, out, alpha=0.5, beta=-2.0) is out
    close(out, 0.5 * product - 2 * c.double())
    assert set(kernels.matmul.stats) == {"tuned: exact"}


def test_factors_of_0_read_nothing(kernels: Kernels) -> None:
    import cupy

    nan, b, bias, c = tensor(128, 256) * float("nan"), tensor(256, 192), tensor(192), tensor(128, 192)
    out = c.clone()
    kernels.matmul(nan, b, out, bias, activation="relu", alpha=0.0, beta=-2.0)
    close(out, torch.relu(bias.double() - 2 * c.double()))
    assert not kernels.matmul(nan, b, alpha=0.0).any()
    with_cupy = kernels.matmul(*(cupy.from_dlpack(one) for one in (nan, b)), alpha=0.0)
    assert not torch.from_dlpack(with_cupy).any()
    square = torch.full((192, 192), float("nan"), device="cuda").half()
    kernels.matmul(b.t(), b, square)
    close(square, b.double().t() @ b.double())


@pytest.mark.parametrize("family", ["wgmma", "mma_sync", "simt"])
def test_operands_that_move(device: Any, family: str) -> None:
    """Other addresses at every call: pointers are patched, tensor maps encoded anew."""
    if family == "wgmma" and device.spec.arch != "sm_90":
        pytest.skip("wgmma needs sm_90")
    kernels, kept = Kernels(device, family), []
    for _ in range(80):  # more than the descriptors that are kept
        a, b = tensor(128, 64), tensor(128, 64).t()
        kept.append((a, b, kernels.matmul(a, b)))
    for a, b, d in kept:
        close(d, a.double() @ b.double())
    assert kernels.matmul.stats == {"tuned: exact": 80}


@pytest.mark.parametrize("family", ["wgmma_ws", "mma_sync"])
def test_results_in_place_of_c_that_move(device: Any, family: str) -> None:
    """Several subtiles of C and several k tiles; ``wgmma_ws`` loads C by TMA."""
    if family == "wgmma_ws" and device.spec.arch != "sm_90":
        pytest.skip("wgmma_ws needs sm_90")
    kernels, kept = Kernels(device, family), []
    for _ in range(70):  # more than the descriptors that are kept
        a, b, c = tensor(1024, 256), tensor(1024, 256).t(), tensor(1024, 1024)
        kept.append((a, b, c, kernels.matmul(a, b, c.clone(), alpha=0.5, beta=-2.0)))
    for a, b, c, out in kept:
        close(out, 0.5 * (a.double() @ b.double()) - 2 * c.double())
    assert kernels.matmul.stats == {"tuned: exact": 70}


def test_misaligned_operands_run_with_the_vendor_library(kernels: Kernels) -> None:
    flat, b = tensor(128 * 64 + 1), tensor(64, 128)
    for offset in (0, 1, 0):
        a = flat[offset : offset + 128 * 64].view(128, 64)
        close(kernels.matmul(a, b), a.double() @ b.double())
    assert kernels.matmul.stats["tuned: exact"] == 2
    assert any("multiple of" in reason for reason in kernels.matmul.stats)


def test_the_callers_stream(kernels: Kernels, scratch: Kernels) -> None:
    for one in (kernels, scratch):
        a, b = tensor(64, 8192), tensor(8192, 64)
        one.matmul(a, b)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            a.zero_()
            got = one.matmul(a, b)
        side.synchronize()
        assert not got.any(), "it ran before what its stream had to do first"


@pytest.mark.parametrize("first_call_in_the_graph", [False, True])
@pytest.mark.parametrize("needs_workspace", [False, True])
def test_graphs(device: Any, needs_workspace: bool, first_call_in_the_graph: bool) -> None:
    whole = "wgmma" if device.spec.arch == "sm_90" else "wmma"
    kernels = Kernels(device, "mma_sync", scratch=True) if needs_workspace else Kernels(device, whole)
    a, b = tensor(64, 8192), tensor(8192, 64)
    torch.matmul(a, b)
    if not first_call_in_the_graph:
        kernels.matmul(a, b)
    graphs = []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first = kernels.matmul(a, b)
            second = kernels.matmul(a, b, activation="relu")
        graphs.append((graph, first, second))
    for _ in range(3):
        a.copy_(tensor(64, 8192))
        for graph, first, second in graphs:
            graph.replay()
            eager = kernels.matmul(a, b)
            torch.cuda.synchronize()
            for got in (first, eager):
                close(got, a.double() @ b.double())
            close(second, torch.relu(a.double() @ b.double()))
    del graphs
    close(kernels.matmul(a, b), a.double() @ b.double())
    assert set(kernels.matmul.stats) == {"tuned: exact"}


def test_cupy_arrays(kernels: Kernels, scratch: Kernels) -> None:
    import cupy

    for one in (kernels, scratch):
        a = cupy.random.standard_normal((64, 8192), dtype="float32").astype("float16")
        b = cupy.random.standard_normal((8192, 64), dtype="float32").astype("float16")
        expected = torch.from_dlpack(a.astype("float64") @ b.astype("float64"))
        close(torch.from_dlpack(one.matmul(a, b)), expected)
        out = cupy.empty((64, 64), "float16")
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            one.matmul(a, b, out)
            graph = stream.end_capture()
            for _ in range(3):
                graph.launch(stream)
        stream.synchronize()
        close(torch.from_dlpack(out), expected)
        assert set(one.matmul.stats) == {"tuned: exact"}


def mlp() -> Any:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    return torch.nn.Sequential(*layers).cuda().half()


def test_a_transformer_mlp_routed_eager_captured_and_compiled(kernels: Kernels) -> None:
    plain, routed, x = mlp(), mlp(), tensor(4, 64, 512)
    with torch.no_grad(), tilewright_torch.use(routed, kernels):
        close(routed(x), plain(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = routed(x)
        x.copy_(tensor(4, 64, 512))
        graph.replay()
        close(captured, plain(x))
        close(torch.compile(routed, backend="aot_eager", fullgraph=True)(x), plain(x))
        assert set(kernels.matmul.stats) == {"tuned: exact"}
    with torch.no_grad():
        assert torch.equal(routed(x), plain(x))


def test_training_a_routed_mlp(kernels: Kernels) -> None:
    plain, routed, x = mlp(), mlp(), tensor(256, 512)
    with tilewright_torch.use(routed, kernels):
        for one in (plain, routed):
            one(x).float().square().mean().backward()
    for mine, theirs in zip(routed.parameters(), plain.parameters(), strict=True):
        close(mine.grad, theirs.grad)


def test_float32_is_multiplied_as_torch_is_told_to(device: Any) -> None:
    asked: list[str] = []

    def lookup(problem: GemmProblem, _device: int) -> Choice:
        asked.append(problem.dtype.value)
        return Choice(None, "nothing tuned")

    matmul, a = LocalMatmul(lookup), tensor(64, 64, dtype=torch.float32)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            matmul(a, a)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert asked == ["float32", "tfloat32"]
    assert device.spec.kind == "cuda"


@pytest.mark.alone
def test_a_call_costs_the_cpu_no_more_than_torch(kernels: Kernels) -> None:
    """The figure is that of benchmarks/client/launch.py; here a quarter more is granted to a busy machine."""
    from benchmarks.client.launch import measure_calls

    options = argparse.Namespace(extent=128, calls=200, rounds=11)
    ratios = measure_calls(kernels, "cuda", options)["ratio"]
    assert ratios[".matmul"] < 1.25, ratios
    assert ratios[" linear"] < 1.25, ratios
