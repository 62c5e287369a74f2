"""``matmul``: layouts, batches, leading dimensions and epilogues against NumPy, and what each ran with."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_samples import activate, artifact_of, config_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import every

from tilewright import Activation, AsyncClient, Client, DType, GemmProblem, LaunchPlan
from tilewright.artifact import Preconditions, Scalar, TensorMap
from tilewright.errors import InvalidProblem, ServiceUnreachable
from tilewright.launch import local_device
from tilewright.launch.host import HostLaunch
from tilewright.matmul.cached_launch import ScratchPlan, TunedPlan
from tilewright.matmul.matmul import Choice, LocalMatmul
from tuner.devices.host import query_host

RANDOM = np.random.default_rng(5)
THREADS = 4


def tuned(problem: GemmProblem, _device: int) -> Choice:
    """A kernel of family host for the types that it computes: on others it would write beyond D."""
    if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return Choice(None, f"nothing is tuned for {problem.dtype}")
    same = dataclasses.replace(problem, m=64, n=64, k=64, batch=1)
    return Choice(artifact_of(config_of(kc=32, mc=32, nc=64), same), "exact")


def array(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("float32")


def close(got: Any, expected: Any) -> None:
    # Totals of up to 40 products of N(0, 1) in float32.
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


CASES = {
    "nn": lambda: (array(33, 40), array(40, 21)),
    "nt": lambda: (array(33, 40), array(21, 40).T),
    "tn": lambda: (array(40, 33).T, array(40, 21)),
    "tt": lambda: (array(40, 33).T, array(21, 40).T),
    "one row": lambda: (array(1, 40), array(40, 21)),
    "one column": lambda: (array(33, 40), array(40, 1)),
    "k of one": lambda: (array(33, 1), array(1, 21)),
    "leading dimensions": lambda: (array(33, 64)[:, 3:43], array(40, 50)[:, :21]),
    "axes folded into rows": lambda: (array(3, 5, 40), array(40, 21)),
    "padded axes folded": lambda: (array(3, 5, 64)[:, :, :40], array(21, 40).T),
    "batch": lambda: (array(4, 33, 40), array(4, 40, 21)),
    "batch, transposed": lambda: (array(4, 40, 33).swapaxes(1, 2), array(4, 40, 21)),
    "two batch axes": lambda: (array(2, 3, 33, 40), array(2, 3, 40, 21)),
}


@pytest.mark.parametrize("name", CASES)
def test_products_run_tuned_where_they_lie(name: str) -> None:
    matmul = LocalMatmul(tuned)
    a, b = CASES[name]()
    for _ in range(2):
        close(matmul(a, b), a @ b)
    assert matmul.stats == {"tuned: exact": 2}


LEFT = {
    "vectors": (lambda: (array(40), array(40, 21)), "vector"),
    "a broadcast batch": (lambda: (array(33, 40), array(4, 40, 21)), "broadcast"),
    "every second column": (lambda: (array(33, 80)[:, ::2], array(40, 21)), "must be a row-major matrix"),
    "rows that do not fold": (lambda: (array(3, 9, 40)[:, :5], array(40, 21)), "leading axes"),
    "another type": (lambda: (array(33, 40), array(40, 21).astype("float64")), "must have one type"),
    "batch with gaps": (lambda: (array(8, 33, 40)[::2], array(4, 40, 21)), "without gaps"),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_left_to_the_library_with_a_reason(name: str) -> None:
    make, reason = LEFT[name]
    matmul = LocalMatmul(tuned)
    a, b = make()
    np.testing.assert_array_equal(matmul(a, b), a @ b)
    [told] = matmul.stats
    assert told.startswith("vendor: ")
    assert reason in told


@pytest.mark.parametrize(
    ("activation", "where"), every(5, itertools.product([None, "relu", "gelu"], ["kernel", "library"]))
)
def test_epilogues_mean_the_same_with_and_without_a_kernel(activation: str | None, where: str) -> None:
    matmul = LocalMatmul(tuned if where == "kernel" else lambda *_: Choice(None, "nothing tuned"))
    a, b, bias, c = array(33, 40), array(40, 21), array(21), array(33, 21)
    kind = Activation(activation or "none")
    close(matmul(a, b, bias=bias, activation=activation), activate(a @ b + bias, kind))
    close(matmul(a, b, activation=activation, alpha=-0.5), activate(-0.5 * (a @ b), kind))
    out = c.copy()
    assert matmul(a, b, out, bias, activation, 2.0, 3.0) is out
    close(out, activate(2 * (a @ b) + 3 * c + bias, kind))
    assert set(matmul.stats) == {"tuned: exact" if where == "kernel" else "vendor: nothing tuned"}


@pytest.mark.parametrize("shape", ["matrices", "a batch", "weights", "vectors"])
@pytest.mark.parametrize("where", ["kernel", "library"])
def test_with_alpha_0_nobody_reads_a_and_b(where: str, shape: str) -> None:
    """As in every BLAS: NaN in them does not reach D = act(beta * C + bias)."""
    matmul = LocalMatmul(tuned if where == "kernel" else lambda *_: Choice(None, "nothing tuned"))
    shapes = {
        "matrices": ((33, 40), (40, 21)),
        "a batch": ((2, 33, 40), (2, 40, 21)),
        "weights": ((33, 40), (21, 40)),
        "vectors": ((33, 40), (40,)),
    }
    a, b = (np.full(one, np.nan, "float32") for one in shapes[shape])
    b = b.T if shape == "weights" else b
    np.testing.assert_array_equal(matmul(a, b, alpha=0.0), np.zeros((a @ b).shape))
    c = array(*(a @ b).shape)
    bias, out = array(c.shape[-1]), c.copy()
    assert matmul(a, b, out, bias, "relu", 0.0, -2.0) is out
    close(out, np.maximum(bias - 2 * c, 0))


@pytest.mark.parametrize("shape", [(41, 21), (1, 21), (2, 41, 21), (41,)])
def test_with_alpha_0_different_k_are_refused_as_with_alpha_1(shape: tuple[int, ...]) -> None:
    matmul, a, b = LocalMatmul(tuned), array(2, 33, 40), array(*shape)
    with pytest.raises(ValueError, match="mismatch in its core dimension") as with_1:
        matmul(a, b)
    with pytest.raises(ValueError, match="mismatch in its core dimension") as with_0:
        matmul(a, b, alpha=0.0)
    assert str(with_0.value) == str(with_1.value)


@pytest.mark.parametrize("where", ["kernel", "library"])
def test_with_beta_0_nobody_reads_c(where: str) -> None:
    matmul = LocalMatmul(tuned if where == "kernel" else lambda *_: Choice(None, "nothing tuned"))
    a, b, out = array(33, 40), array(40, 21), np.full((33, 21), np.nan, "float32")
    for alpha in (1.0, -0.5):
        close(matmul(a, b, out, alpha=alpha), alpha * (a @ b))
        out[:] = np.nan


def test_out_may_have_a_leading_dimension_and_nothing_beside_it_is_touched() -> None:
    matmul = LocalMatmul(tuned)
    a, b, whole = array(33, 40), array(40, 21), np.full((33, 30), 7, "float32")
    matmul(a, b, whole[:, 4:25])
    close(whole[:, 4:25], a @ b)
    assert (whole[:, :4] == 7).all()
    assert (whole[:, 25:] == 7).all()
    turned = np.zeros((21, 33), "float32")
    matmul(a, b, turned.T)
    close(turned.T, a @ b)
    assert matmul.stats == {"tuned: exact": 1, "vendor: out must be row-major; give another array": 1}


def test_weights_as_layers_keep_them() -> None:
    x, weight, bias = array(2, 9, 40), array(21, 40), array(21)
    for matmul in (LocalMatmul(tuned), LocalMatmul(lambda *_: Choice(None, "nothing tuned"))):
        for _ in range(2):
            close(matmul.linear(x, weight, bias, "relu"), np.maximum(x @ weight.T + bias, 0))
            close(matmul.linear(x, weight), x @ weight.T)


def test_what_makes_no_sense_is_refused() -> None:
    matmul = LocalMatmul(tuned)
    with pytest.raises(InvalidProblem, match="give out"):
        matmul(array(2, 2), array(2, 2), beta=1.0)
    with pytest.raises(InvalidProblem, match="none, relu, gelu"):
        matmul(array(2, 2), array(2, 2), activation="swish")
    with pytest.raises(InvalidProblem, match=r"torch, CuPy and NumPy arrays, got builtins\.list"):
        matmul([[1.0]], [[1.0]])


class Changing:
    """A factor as a tensor of torch is one: alike in hash and identity with any value."""

    held = 2.0

    def __float__(self) -> float:
        return self.held


@pytest.mark.parametrize("where", ["kernel", "library"])
def test_a_factor_counts_with_what_it_holds_at_each_call(where: str) -> None:
    matmul = LocalMatmul(tuned if where == "kernel" else vendor_only)
    a, b, out, alpha = array(33, 40), array(40, 21), array(33, 21), np.array(2.0)
    changing: Any = Changing()
    for held in (2.0, 3.0, 1.0):
        changing.held = alpha[()] = held
        close(matmul(a, b, alpha=changing), held * (a @ b))
        close(matmul(a, b, out.copy(), alpha=alpha, beta=changing), held * (a @ b + out))  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", ["2", "x", b"2", None, 2j, np.complex64(2), [2.0], np.ones(2), 10**400])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_factor_that_is_no_real_number_is_refused(name: str, factor: Any) -> None:
    with pytest.raises(InvalidProblem, match=f"{name} must be a real number"):
        LocalMatmul(tuned)(array(4, 4), array(4, 4), array(4, 4), **{name: factor})


def test_objects_have_factors_and_a_bias_too() -> None:
    a = array(4, 4).astype(object)
    got = LocalMatmul(tuned)(a, a, a.copy(), a[0], "relu", 2.0, 0.5)
    close(got.astype("f8"), np.maximum(2 * (a @ a) + 0.5 * a + a[0], 0).astype("f8"))


def test_a_lookup_that_breaks_leaves_the_product_to_the_library() -> None:
    def broken(*_: object) -> Choice:
        raise ValueError("embedded null byte")

    matmul, a, b = LocalMatmul(broken), array(33, 40), array(40, 21)
    for _ in range(2):
        np.testing.assert_array_equal(matmul(a, b), a @ b)
    assert matmul.stats == {"vendor: the lookup broke: ValueError": 2}


SENSELESS: dict[str, tuple[Callable[[LaunchPlan], dict[str, Any]], str]] = {
    "no alignment": (
        lambda _: {"preconditions": Preconditions(align_a=0)},
        "its plan broke: ZeroDivisionError",
    ),
    "no tiles": (
        lambda plan: {"grid": dataclasses.replace(plan.grid, tile_m=0)},
        "its plan broke: ZeroDivisionError",
    ),
    "an unknown number": (
        lambda plan: {"args": (*plan.args, Scalar("o", "int32"))},
        "its plan broke: KeyError",
    ),
    "a map": (
        lambda plan: {"args": (*plan.args, TensorMap("a", (8, 8)))},
        "a host artifact has no tensor maps, CTA order or copies; fetch it again",
    ),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_a_plan_without_sense_leaves_the_product_to_the_library(name: str) -> None:
    changes, reason = SENSELESS[name]

    def lookup(problem: GemmProblem, device: int) -> Choice:
        sound = tuned(problem, device).artifact
        assert sound is not None
        plan = dataclasses.replace(sound.plan, **changes(sound.plan))
        return Choice(dataclasses.replace(sound, plan=plan), "exact")

    matmul, a, b = LocalMatmul(lookup), array(33, 40), array(40, 21)
    for _ in range(2):
        np.testing.assert_array_equal(matmul(a, b), a @ b)
    assert matmul.stats == {f"vendor: {reason}": 2}


def test_a_launch_that_an_interrupt_broke_off_leaves_no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Semaphores in it may not be zero, and the next launch would count on from there."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    matmul, a, b = LocalMatmul(tuned), array(33, 40), array(40, 21)
    matmul(a, b)
    [plan] = matmul._threads.plans.values()
    assert isinstance(plan, ScratchPlan)
    assert len(plan._by_stream) == 1
    with monkeypatch.context() as patched:
        patched.setattr(HostLaunch, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            matmul(a, b)
    assert plan._by_stream == {}
    close(matmul(a, b), a @ b)


def test_a_product_within_a_launch_has_a_launch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler multiplies between the moment where the arguments are patched and the launch."""
    matmul, a, b = LocalMatmul(tuned), array(33, 40), array(40, 21)
    matmul(a, b)
    [plan] = matmul._threads.plans.values()
    others, within, launched = (array(33, 40), array(40, 21)), list[Any](), HostLaunch.__call__

    def interrupted(launch: HostLaunch, stream: int = 0) -> None:
        if not within:
            within.append(None)
            within[0] = matmul(*others)
        launched(launch, stream)

    monkeypatch.setattr(HostLaunch, "__call__", interrupted)
    close(matmul(a, b), a @ b)
    close(within[0], others[0] @ others[1])
    assert len(plan._by_stream) == 1  # type: ignore[union-attr]


def test_without_a_workspace_too() -> None:
    launched: list[tuple[int, ...]] = []

    class Launch:
        def __init__(self, _problem: GemmProblem, operands: Any) -> None:
            self.addresses = operands.a, operands.b, operands.d

        def move(self, *addresses: int) -> None:
            self.addresses = addresses[0], addresses[1], addresses[2]
            if len(launched) == 1:
                launched.append(())
                plan(*others, None)

        def __call__(self, _stream: int) -> None:
            launched.append(self.addresses)

    matmul, a, b = LocalMatmul(tuned), array(33, 40), array(40, 21)
    matmul(a, b)
    [like] = matmul._threads.plans.values()
    nothing: Any = SimpleNamespace(plan=SimpleNamespace(workspace_bytes=lambda _problem: 0))
    kernel: Any = SimpleNamespace(artifact=nothing, bind=Launch)
    plan = TunedPlan(kernel, like._library, like._product, like._counter, like._fallback)  # type: ignore[union-attr]
    others = array(33, 40), array(40, 21), np.empty((33, 21), np.float32)
    out = np.empty((33, 21), np.float32)
    plan(a, b, out, None)
    plan(a, b, out, None)
    mine, _, inner, outer = launched
    assert outer == mine == (a.ctypes.data, b.ctypes.data, out.ctypes.data)
    assert inner == tuple(one.ctypes.data for one in others)


def test_forgetting_asks_again() -> None:
    problem = GemmProblem(4, 4, 4, "float32", "nt")
    answers = [Choice(None, "nothing tuned", miss=True), Choice(tuned(problem, -1).artifact, "x")]
    matmul = LocalMatmul(lambda *_: answers.pop(0))
    a, b = array(4, 4), array(4, 4).T
    matmul(a, b)
    matmul(a, b)
    matmul.forget()
    close(matmul(a, b), a @ b)
    assert matmul.stats == {"vendor: nothing tuned": 2, "tuned: x": 1}
    [counter] = matmul.misses()
    assert (counter.problem, counter.count) == (problem, 2)


def test_a_forked_child_asks_again_and_leaves_the_misses_of_its_parent_to_it() -> None:
    asked = []

    def lookup(problem: GemmProblem, device: int) -> Choice:
        asked.append((problem, device))
        return Choice(None, "nothing tuned", miss=True)

    matmul, a = LocalMatmul(lookup), array(4, 4)
    for _ in range(2):
        matmul(a, a)
    matmul.after_fork()
    matmul(a, a)
    [counter] = matmul.misses()
    assert (len(asked), counter.count, counter.count - counter.reported) == (2, 3, 1)


def test_shapes_that_never_repeat_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.matmul.matmul._MOST_COUNTERS", 8)
    monkeypatch.setattr("tilewright.matmul.matmul._MOST_PLANS", 4)
    matmul = LocalMatmul(lambda *_: Choice(None, "nothing tuned", miss=True))
    for m in range(1, 41):
        matmul(array(m, 2), array(2, 3))
    assert matmul.stats == {"vendor: nothing tuned": 40}
    assert len(matmul.misses()) < 8


def test_workspaces_of_shapes_that_never_repeat_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul, workspaces = LocalMatmul(tuned), weakref.WeakSet[Any]()
    monkeypatch.setattr("tilewright.matmul.matmul._MOST_WORKSPACE", 2**18)
    held = []
    for m in range(1, 41):
        a, b = array(m, 64), array(64, 64)
        close(matmul(a, b), a @ b)
        workspaces.update(matmul._threads.plans.values())
        held.append(sum(plan.workspace_bytes for plan in workspaces))
    assert min(held) > 0
    assert max(held) <= 2**18
    assert matmul.stats == {"tuned: exact": 40}


def test_the_client_finds_the_device_class_that_the_tuner_stores() -> None:
    assert local_device.device_class(local_device.HOST) == query_host().device_class


def operands(seed: int, dtype: str = "float32") -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.standard_normal((96, 512)).astype(dtype), random.standard_normal((512, 160)).astype(dtype)


def worst(matmul: LocalMatmul, seed: int) -> float:
    a, b = operands(seed)
    exact = a.astype("float64") @ b.astype("float64")
    return max(float(np.abs(matmul(a, b) - exact).max()) for _ in range(60))


def test_threads_do_not_share_a_workspace() -> None:
    matmul = LocalMatmul(tuned)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        errors = list(pool.map(lambda seed: worst(matmul, seed), range(THREADS)))
    # Totals of 512 products of N(0, 1) are about 23 and err by some 1e-5 in float32.
    assert max(errors) < 1e-3
    assert matmul.stats["tuned: exact"] > 0


def test_a_service_that_does_not_answer_is_asked_once_and_leaves_it_to_the_vendor() -> None:
    asked = []

    def lookup(problem: GemmProblem, device: int) -> Choice:
        asked.append((problem, device))
        raise ServiceUnreachable("nobody answers")

    matmul = LocalMatmul(lookup)
    a, b = operands(0)
    for _ in range(2):
        np.testing.assert_array_equal(matmul(a, b), a @ b)
    assert len(asked) == 1
    assert matmul.stats == {"vendor: nobody answers": 2}


def test_strides_that_are_no_whole_elements_are_not_launched_on() -> None:
    packed = np.zeros((8, 8), dtype=[("value", "f4"), ("flag", "u1")])
    packed["value"] = np.arange(64).reshape(8, 8)
    view = packed["value"]
    assert view.strides == (40, 5)
    matmul = LocalMatmul(tuned)
    np.testing.assert_array_equal(matmul(view, view), view @ view)
    assert matmul.stats == {"vendor: strides of (40, 5) bytes are no whole elements; copy the array": 1}


def vendor_only(_problem: GemmProblem, _device: int) -> Choice:
    return Choice(None, "nothing is tuned")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<f2", "<i4", "?", "<c8", "<u1"]),
    st.sampled_from(
        ["plain", "masked", "matrix", "memmap", "read-only", "unaligned", "reversed", "broadcast"]
    ),
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
)
def test_every_kind_of_numpy_array_gets_what_numpy_answers(
    dtype: str, kind: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = kind_of_array(kind, dtype, (m, k)), kind_of_array(kind, dtype, (k, n))
    try:
        expected = a @ b
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            LocalMatmul(tuned)(a, b)
        return
    got = LocalMatmul(tuned)(a, b)
    assert type(got) is type(expected)
    # NOTE: the data alone, as a mask that NumPy gives a product does not always fit it.
    np.testing.assert_allclose(np.ma.getdata(got), np.ma.getdata(expected), rtol=1e-2, atol=1e-2)


def kind_of_array(kind: str, dtype: str, shape: tuple[int, int]) -> Any:
    made = RANDOM.integers(0, 3, shape).astype(dtype)
    if kind == "masked":
        return np.ma.masked_array(made, mask=RANDOM.integers(0, 2, shape))
    if kind == "matrix":
        return made.view(np.matrix)
    if kind == "memmap":
        return made.view(np.memmap)
    if kind == "read-only":
        made.flags.writeable = False
    if kind == "unaligned":
        raw = np.zeros(made.nbytes + 1, np.uint8)[1:]
        raw[:] = np.frombuffer(made.tobytes(), np.uint8)
        return raw.view(dtype).reshape(shape)
    if kind == "reversed":
        return made[::-1, ::-1]
    if kind == "broadcast":
        return np.broadcast_to(made[:1], shape)
    return made


def test_swapped_bytes_are_no_tuned_product() -> None:
    a, b = array(8, 8), array(8, 8)
    matmul = LocalMatmul(tuned)
    close(matmul(a.astype(">f4"), b.astype(">f4")), a @ b)
    assert [reason for reason in matmul.stats if "byte order" in reason]


def test_a_refused_masked_array_stays_as_it_was() -> None:
    """NumPy writes the product of a vector into ``out`` and then finds that masks do not fit."""
    out = np.ma.array(np.full((1, 2), 7.0, "float32"), mask=[[False, True]])
    with pytest.raises(InvalidProblem, match="give its data"):
        LocalMatmul(vendor_only)(np.zeros(0, "float32"), np.zeros((0, 2), "float32"), out)
    assert (out.data == 7.0).all()


def test_nothing_is_written_to_what_is_read_only(tmp_path: Path) -> None:
    a, b, frozen = array(8, 8), array(8, 8), bytes(256)
    path = tmp_path / "out"
    path.write_bytes(frozen)
    matmul = LocalMatmul(tuned)
    writable = np.zeros((8, 8), "float32")
    matmul(a, b, out=writable)
    for out in (
        np.frombuffer(frozen, "float32").reshape(8, 8),
        np.memmap(path, "float32", "r", shape=(8, 8)),
    ):
        for epilogue in ({}, {"beta": 1.0}, {"activation": "relu"}):
            with pytest.raises(ValueError, match="read-only"):
                matmul(a, b, out=out, **epilogue)
    assert frozen == bytes(256) == path.read_bytes()


def test_an_out_that_overlaps_an_operand_gets_what_numpy_answers() -> None:
    matmul = LocalMatmul(tuned)
    matmul(array(8, 8), array(8, 8), out=np.empty((8, 8), "float32"))
    memory = array(24, 8)
    for first in (0, 3, 8, 11, 16):
        now = memory.copy()
        a, b, out = now[:8], now[16:], now[first : first + 8]
        expected = a @ b
        close(matmul(a, b, out=out), expected)
    assert matmul.stats["vendor: out overlaps an operand"] == 4
    assert matmul.stats["tuned: exact"] == 2


SHARED: dict[str, Callable[[], tuple[Any, Any]]] = {  # an operand, and an out whose elements share memory
    "batch": lambda: (
        np.stack([np.eye(2), 2 * np.eye(2)]), strided(np.zeros((2, 2)), (2, 2, 2), (0, 16, 8)),
    ),
    "rows": lambda: (np.eye(3), strided(np.zeros(5), (3, 3), (8, 8))),
    "rows, backwards": lambda: (np.eye(3), strided(np.zeros(5)[2:], (3, 3), (-8, 8))),
    "parts of elements": lambda: (np.eye(2), strided(np.zeros(4), (2, 2), (16, 4))),
}  # fmt: skip


def strided(memory: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return np.lib.stride_tricks.as_strided(memory, shape, strides)


@pytest.mark.parametrize("lookup", [tuned, vendor_only])
@pytest.mark.parametrize("factors", [{}, {"alpha": 2.0}, {"beta": 1.0, "activation": "relu"}])
@pytest.mark.parametrize("name", SHARED)
def test_an_out_whose_elements_share_memory_is_refused(name: str, factors: Any, lookup: Any) -> None:
    a, out = SHARED[name]()
    with pytest.raises(InvalidProblem, match="elements of out must not share memory"):
        LocalMatmul(lookup)(a, a, out, **factors)
    assert not out.any()


OUTS: dict[str, Callable[[int, int, int], Any]] = {
    "turned": lambda batch, m, n: np.zeros((n, m, batch)).T,
    "sliced": lambda batch, m, n: np.zeros((2 * batch, m + 3, 3 * n))[::2, 2:-1, 1::3],
    "backwards": lambda batch, m, n: np.zeros((batch, m, n))[::-1, :, ::-1],
    "repeated, but empty": lambda _, m, n: np.broadcast_to(np.zeros(()), (0, m, n)).view(),
}


@pytest.mark.parametrize("lookup", [tuned, vendor_only])
@pytest.mark.parametrize("name", OUTS)
def test_an_out_that_is_a_view_is_written_where_it_lies(name: str, lookup: Any) -> None:
    batch = 0 if "empty" in name else 3
    a, b = RANDOM.standard_normal((batch, 4, 6)), RANDOM.standard_normal((6, 5))
    for right, alpha in itertools.product((b, np.broadcast_to(b, (batch, 6, 5))), (1.0, 2.0)):
        out = OUTS[name](batch, 4, 5)
        out.flags.writeable = True
        assert LocalMatmul(lookup)(a, right, out, alpha=alpha) is out
        close(out, alpha * (a @ b))


@pytest.mark.parametrize("factors", [{"alpha": 1e39}, {"alpha": -1e300}, {"beta": 4e38}])
def test_a_factor_beyond_the_running_sum_is_refused(factors: dict[str, float]) -> None:
    for lookup in (tuned, vendor_only):
        with pytest.raises(InvalidProblem, match="scale an operand"):
            LocalMatmul(lookup)(array(4, 4), array(4, 4), out=array(4, 4), **factors)
    wide = RANDOM.standard_normal((4, 4))
    out = LocalMatmul(tuned)(wide, wide, out=wide.copy(), **factors)
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("left", "right", "options", "expected"),
    [
        ([[240]], [[240]], {"alpha": 1e-8}, 240 * 240 * 1e-8),
        ([[0.01]], [[1]], {"alpha": 1e6}, 1e4),
        ([[0]], [[1]], {"alpha": 1e6}, 0),
        ([0.01], [1], {"alpha": 1e6}, 1e4),
        ([[300]], [[300]], {"alpha": 0.5}, 45000),
        ([[300]], [[300]], {"bias": np.array([-60000], "f2")}, 30000),
        ([[300]], [[300]], {"alpha": 0.5, "activation": "gelu"}, 45000),
        ([[300]], [[300]], {"out": np.array([[6e4]], "f2"), "beta": -1.0}, 30000),
        ([[0]], [[1]], {"out": np.array([[1e-3]], "f2"), "beta": 1e6}, 1000),
    ],
)
def test_float16_is_rounded_once_after_the_epilogue(
    left: Any, right: Any, options: dict[str, Any], expected: float
) -> None:
    """As kernels do, whose running sum is float32."""
    got = LocalMatmul(tuned)(np.array(left, "f2"), np.array(right, "f2"), **options)
    assert got.dtype == np.float16
    np.testing.assert_allclose(np.float64(got).ravel(), expected, rtol=2e-3)


def test_float16_layers_are_rounded_once_after_the_bias() -> None:
    x, bias = np.full((1, 1), 300, "f2"), np.array([-60000], "f2")
    got = LocalMatmul(tuned).linear(x, x, bias)
    assert (got.dtype, got.item()) == (np.float16, 30000)


@pytest.mark.parametrize("factors", [{"alpha": 1e39}, {"beta": -1e39}])
@pytest.mark.parametrize("dtype", ["f2", "f4", "c8"])
def test_a_factor_beyond_the_running_sum_is_refused_for_vectors_too(
    factors: dict[str, float], dtype: str
) -> None:
    tiny = np.array([1e-7], dtype)
    with pytest.raises(InvalidProblem, match=r"must be at most 3\.4028235e\+38 .*scale an operand"):
        LocalMatmul(tuned)(tiny, tiny[:, None], out=tiny.copy(), **factors)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bias": [1, 2]}, r"the bias must be an array as a is; use numpy\.array"),
        ({"out": [[1, 2], [3, 4]], "beta": 1.0}, r"out must be an array as a is; use numpy\.array"),
        ({"out": [[1, 2], [3, 4]], "activation": "relu"}, "out must be an array"),
        ({"activation": ["relu"]}, r"activation must be one of .* got \['relu'\]"),
        ({"activation": np.array(["relu"])}, "activation must be one of"),
        ({"activation": 0}, "activation must be one of"),
        ({"bias": np.array([1j, -2j]), "activation": "relu"}, "relu is for real numbers"),
        ({"bias": np.array([1j, -2j]), "activation": "gelu"}, "gelu is .* convert those of type complex128"),
        ({"out": np.ones((2, 2), "c8"), "beta": 1.0, "activation": "relu"}, "relu is for real numbers"),
        ({"out": np.zeros((3, 2, 2), "f4")}, r"out must have the shape \(2, 2\)"),
        ({"out": np.zeros((3, 2, 2), "f4"), "activation": "relu"}, r"out must have the shape \(2, 2\)"),
    ],
)
def test_an_argument_of_another_kind_or_shape_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidProblem, match=reason):
        LocalMatmul(tuned)(array(2, 2), array(2, 2), **options)


def test_out_is_not_broadcast_to_of_other_ranks() -> None:
    for a, b, shape in ((array(2), array(2, 2), (3, 2)), (array(1, 2, 2), array(2, 2), (3, 2, 2))):
        with pytest.raises(InvalidProblem, match="out must have the shape"):
            LocalMatmul(tuned)(a, b, np.zeros(shape, "f4"))
        out = np.zeros((a @ b).shape, "f4")
        close(LocalMatmul(tuned)(a, b, out), a @ b)
    with pytest.raises(InvalidProblem, match="activation must be one of"):
        LocalMatmul(tuned).linear(array(2, 2), array(2, 2), activation=["relu"])  # type: ignore[arg-type]


def test_what_is_no_array_or_has_no_bytes_gets_what_numpy_answers() -> None:
    matmul, a, b = LocalMatmul(tuned), array(2, 2), [[1.0, 2.0], [3.0, 4.0]]
    for alpha in (1.0, 2.0, 0.0):
        close(matmul(a, b, alpha=alpha), alpha * (a @ np.array(b)))
    for empty in ("V0", "S0", "U0"):
        nothing = np.zeros((2, 2), empty)
        with pytest.raises(TypeError, match="matmul"):
            matmul(nothing, nothing)


def test_a_mistyped_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="pni"):
        Client(pni="sha256:" + "0" * 64)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "http://[::1",
        "127.0.0.1:8080",
        "http://",
        "http://x:port",
        "http://x?y=1",
        "file:///srv/\udcff",
        None,
        b"http://x",
    ],
)
def test_what_is_no_url_of_a_service_is_refused_at_once(url: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidProblem, match="must be like http"):
            kind(url)
