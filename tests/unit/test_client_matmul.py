"""``matmul``: layouts, batches, leading dimensions and epilogues against NumPy, and what each ran with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from host_samples import activate, artifact_of, config_of

from tilewright import Activation, GemmProblem, LaunchPlan, here
from tilewright.artifact import Preconditions, Scalar, TensorMap
from tilewright.errors import InvalidProblem
from tilewright.local import Choice, LocalMatmul
from tuner.devices.host import query_host

RANDOM = np.random.default_rng(5)


def tuned(problem: GemmProblem, _device: int) -> Choice:
    same = dataclasses.replace(problem, m=64, n=64, k=64, batch=1)
    return Choice(artifact_of(config_of(kc=32, mc=32, nc=64), same), "exact")


def array(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("float32")


def close(got: Any, expected: Any) -> None:
    # Sums of up to 40 products of N(0, 1) in float32.
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
    "every second column": (lambda: (array(33, 80)[:, ::2], array(40, 21)), "no row-major matrix"),
    "rows that do not fold": (lambda: (array(3, 9, 40)[:, :5], array(40, 21)), "leading axes"),
    "another type": (lambda: (array(33, 40), array(40, 21).astype("float64")), "do not match"),
    "batch with gaps": (lambda: (array(8, 33, 40)[::2], array(4, 40, 21)), "right after one another"),
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


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("where", ["kernel", "library"])
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
    assert matmul.stats == {"tuned: exact": 1, "vendor: out is not row-major": 1}


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
        "a host artifact takes no tensor maps and no order of blocks",
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
    [tally] = matmul.misses()
    assert (tally.problem, tally.count) == (problem, 2)


def test_shapes_that_never_repeat_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.local._MOST_TALLIES", 8)
    monkeypatch.setattr("tilewright.local._MOST_PLANS", 4)
    matmul = LocalMatmul(lambda *_: Choice(None, "nothing tuned", miss=True))
    for m in range(1, 41):
        matmul(array(m, 2), array(2, 3))
    assert matmul.stats == {"vendor: nothing tuned": 40}
    assert len(matmul.misses()) < 8


def test_the_client_finds_the_device_class_that_the_tuner_stores() -> None:
    assert here.device_class(here.HOST) == query_host().device_class
