"""torch on the CPU with kernels of the host family: operator, gradients, compilation, routed models."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from host_samples import artifact_of, config_of

from tilewright import DType, GemmProblem
from tilewright.errors import InvalidProblem
from tilewright.matmul.matmul import Choice, LocalMatmul
from tilewright.schema.problem import Activation

torch = pytest.importorskip("torch", reason="torch is not installed")
tilewright_torch = pytest.importorskip("tilewright.torch")
torch_arrays = pytest.importorskip("tilewright.matmul.torch_arrays")
activated = torch_arrays.activated

# NOTE: warnings that torch raises about itself are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch.*")


class Kernels:
    def __init__(self, tuned: bool = True) -> None:
        self.tuned = tuned
        self.matmul = LocalMatmul(self.choose)

    def choose(self, problem: GemmProblem, _device: int) -> Choice:
        if not self.tuned or problem.dtype not in (DType.FLOAT32, DType.FLOAT64):  # those of the host family
            return Choice(None, "nothing tuned")
        same = dataclasses.replace(problem, m=64, n=64, k=64, batch=1)
        return Choice(artifact_of(config_of(kc=32, mc=32, nc=64), same), "exact")


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    made = Kernels()
    torch.manual_seed(0)
    tilewright_torch.kernels_of(made)
    yield made
    tilewright_torch.kernels_of(None)


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.GELU(), torch.nn.Linear(64, 16, bias=False))


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def products(kernels: Kernels) -> int:
    return sum(kernels.matmul.stats.values())


def test_products_run_tuned_on_tensors(kernels: Kernels) -> None:
    a, b, bias = torch.randn(3, 5, 24), torch.randn(24, 10), torch.randn(10)
    close(kernels.matmul(a, b), a @ b)
    close(kernels.matmul(a[0].t(), torch.randn(10, 5).t() * 0 + 1), a[0].t() @ torch.ones(5, 10))
    close(kernels.matmul(a, b, bias=bias, activation="relu"), torch.relu(a @ b + bias))
    out = torch.randn(3, 5, 10)
    expected = 2 * (a @ b) - out
    assert kernels.matmul(a, b, out, alpha=2.0, beta=-1.0) is out
    close(out, expected)
    assert set(kernels.matmul.stats) == {"tuned: exact"}


def test_what_a_launch_would_harm_is_left_to_torch(kernels: Kernels) -> None:
    a = torch.randn(4, 4, requires_grad=True)
    assert kernels.matmul(a, a).grad_fn is not None
    with torch.no_grad():
        kernels.matmul(a, a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernels.matmul(a.detach(), a.detach()).dtype == torch.bfloat16
    assert kernels.matmul(torch.empty(4, 4, device="meta"), torch.empty(4, 4, device="meta")).is_meta
    reasons = sorted(kernels.matmul.stats)
    assert reasons[0] == "tuned: exact"
    assert all(reason.startswith("vendor: ") for reason in reasons[1:])
    assert sum(kernels.matmul.stats.values()) == 4


def test_integers_have_factors_without_rounding() -> None:
    matmul, large, one = Kernels().matmul, torch.tensor([[2**24 + 1]]), torch.tensor([[1]])
    for got in (matmul(large, one, one * 0, beta=1.0), matmul(large, one, alpha=3.0) // 3):
        assert (got.dtype, got.item()) == (torch.int64, 2**24 + 1)
    with pytest.raises(InvalidProblem, match=r"alpha must be a value of type torch\.int64, got 0\.5"):
        matmul(large, one, alpha=0.5)


ONES = {"a": torch.ones(3, 4), "b": torch.ones(4, 5)}
OTHER_FORMULAS: list[dict[str, Any]] = [
    {"bias": torch.ones(3, 1)}, {"bias": torch.ones(())}, {"bias": torch.ones(3, 5), "activation": "relu"},
    {"out": torch.ones(2, 3, 5), "beta": 1.0}, {"out": torch.ones(2, 3, 5), "activation": "relu"},
    {"out": torch.ones(5), "beta": 1.0},
    {"out": torch.ones(3, 5, dtype=torch.int32), "alpha": 0.5},
    {"out": torch.ones(3, 5, dtype=torch.int32), "beta": 0.5},
    {"out": torch.ones(3, 5, dtype=torch.bool), "activation": "relu"},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OTHER_FORMULAS)))
def test_what_would_be_another_formula_is_refused_as_for_numpy(number: int) -> None:
    with pytest.raises(InvalidProblem, match=r"(bias|out) must (have the shape|hold)"):
        Kernels().matmul(**ONES, **OTHER_FORMULAS[number])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bias": [1.0] * 5}, "the bias must be a tensor"),
        ({"out": [[1.0]], "beta": 1.0}, "out must be a tensor"),
        ({"b": [[1.0] * 5] * 4, "alpha": 0.0}, "b must be a tensor"),
        ({"a": torch.ones(4), "alpha": 1e39}, "scale an operand"),
    ],
)
def test_an_argument_of_another_kind_or_size_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidProblem, match=reason):
        Kernels().matmul(**ONES | changes)


@pytest.mark.filterwarnings("ignore")
def test_transforms_of_functions_are_left_to_torch(kernels: Kernels) -> None:
    x, w, layer = torch.randn(6, 3, 4), torch.randn(4, 5), torch.nn.Linear(4, 5)
    with torch.no_grad(), tilewright_torch.use(layer, kernels):
        for product in (lambda a: kernels.matmul(a, w), layer):
            product(x[0])  # with its plan at hand
            close(torch.func.vmap(product)(x), product(x))


def test_forward_derivatives_are_left_to_torch(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    kernels.matmul(a, b)
    # NOTE: as within dual_level(), whose first use compiles for 10 s.
    monkeypatch.setattr(torch.autograd.forward_ad, "_current_level", 0)
    kernels.matmul(a, b)
    assert sorted(kernels.matmul.stats.values()) == [1, 1]


def traced(product: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    return torch.jit.trace(product, (x,), check_trace=False)


def recorded(product: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    return torch.fx.experimental.proxy_tensor.make_fx(product)(x)


def recorded_before_dispatch(product: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    return torch.fx.experimental.proxy_tensor.make_fx(product, pre_dispatch=True)(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [traced, recorded, recorded_before_dispatch])
@pytest.mark.parametrize("grad", [False, True])
def test_a_traced_product_is_in_the_graph(kernels: Kernels, way: Callable[..., Any], grad: bool) -> None:
    pytest.importorskip("torch.fx.experimental.proxy_tensor")
    x, w, layer = torch.randn(6, 4), torch.randn(4, 5), torch.nn.Linear(4, 5)
    with torch.set_grad_enabled(grad), tilewright_torch.use(layer, kernels):
        for product in (lambda a: kernels.matmul(a, w), layer):
            product(x)  # with its plan at hand
            close(way(product, x)(3 * x), product(3 * x))


@pytest.mark.parametrize("grad", [False, True])
def test_a_mode_that_counts_operations_sees_every_product(kernels: Kernels, grad: bool) -> None:
    flop_counter = pytest.importorskip("torch.utils.flop_counter")
    x, layer = torch.randn(6, 4), torch.nn.Linear(4, 5)
    with torch.set_grad_enabled(grad), tilewright_torch.use(layer, kernels):
        kernels.matmul(x, x.mT)
        with flop_counter.FlopCounterMode(display=False) as counted:
            kernels.matmul(x, x.mT)
            layer(x)
        assert counted.get_total_flops() == 2 * 6 * 4 * 6 + 2 * 6 * 4 * 5
    with torch.device("cpu"):  # a mode that neither traces nor counts
        kernels.matmul(x, x.mT)
    assert kernels.matmul.stats["tuned: exact"] == 2


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch")
def test_float32_follows_every_setting_of_torch() -> None:
    library, flags = torch_arrays.TorchArrays(), torch.backends.cuda.matmul
    try:
        for precision, dtype in (("tf32", DType.TFLOAT32), ("ieee", DType.FLOAT32)):
            flags.fp32_precision = precision
            assert library.operand_type(DType.FLOAT32) is dtype
        for allowed, dtype in ((True, DType.TFLOAT32), (False, DType.FLOAT32)):
            flags.allow_tf32 = allowed
            assert library.operand_type(DType.FLOAT32) is dtype
    finally:
        flags.fp32_precision = "none"


def test_an_out_that_overlaps_an_operand_gets_the_product(kernels: Kernels) -> None:
    memory, other = torch.randn(17, 16), torch.randn(16, 16)
    kernels.matmul(other, other)
    for first, factors in itertools.product((0, 1), ({}, {"beta": 0.5}, {"activation": "relu"})):
        now = memory.clone()
        a, out = now[:16], now[first : first + 16]
        d = a @ other + factors.get("beta", 0.0) * out
        expected = torch.relu(d) if "activation" in factors else d
        assert kernels.matmul(a, other, out, **factors) is out
        close(out, expected)
    assert kernels.matmul.stats == {"tuned: exact": 1, "vendor: out overlaps an operand": 6}


def test_an_out_of_inference_mode_is_refused_outside(kernels: Kernels) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with torch.inference_mode():
        out = torch.zeros(3, 5)
        kernels.matmul(a, b, out)
    assert kernels.matmul.stats == {"tuned: exact": 1}
    for factors in ({}, {"alpha": 2.0}):
        with pytest.raises(RuntimeError, match="inference tensor"):
            kernels.matmul(a, b, out, **factors)


SIXTY, FORTY, LOW = (torch.full(shape, x).half() for shape, x in (((4, 64), 60), ((4, 64), 40), ((4,), -6e4)))
TOO_LARGE: list[tuple[Any, Any, dict[str, Any]]] = [  # products beyond float16 before the epilogue
    (SIXTY, SIXTY.T, {"alpha": 0.1}),
    (SIXTY[None, None], SIXTY.T.expand(1, 3, 64, 4), {"alpha": 0.1}),
    (SIXTY[0], SIXTY.T, {"alpha": 0.1}),
    (FORTY, FORTY.T, {"out": LOW.expand(4, 4), "beta": 1.0}),
    (FORTY.expand(2, 3, 4, 64), FORTY.T, {"out": LOW.expand(2, 3, 4, 4), "beta": 1.0}),
    (FORTY[None], FORTY.T[None], {"out": LOW.expand(1, 4, 4), "beta": 1.0, "activation": "relu"}),
    (FORTY, FORTY.T, {"out": LOW.expand(4, 4), "beta": 0.5, "bias": LOW / 2}),
    (FORTY, FORTY.T, {"bias": LOW, "alpha": 0.5}),
    (FORTY, FORTY.T, {"bias": LOW}),
    (FORTY[None], FORTY.T[None], {"bias": LOW, "activation": "gelu"}),
    (FORTY.expand(4, 4, 64).transpose(0, 1), FORTY.T, {"bias": LOW}),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("number", range(len(TOO_LARGE)))
def test_torch_rounds_the_formula_once(number: int, dtype: Any) -> None:
    *operands, given = TOO_LARGE[number]
    a, b = (operand.to(dtype) for operand in operands)
    given = {name: x.to(dtype).clone() if torch.is_tensor(x) else x for name, x in given.items()}
    d = given.get("alpha", 1.0) * (a.double() @ b.double())
    for name, factor in (("out", given.get("beta", 0.0)), ("bias", 1.0)):
        d = d + factor * given[name].double() if name in given else d
    expected = activated(d, Activation(given.get("activation", "none"))).to(dtype)
    got = Kernels(tuned=False).matmul(a, b, **given)
    torch.testing.assert_close(got, expected)
    if given.keys() <= {"bias", "activation"}:
        torch.testing.assert_close(tilewright_torch.matmul(a, b, **given), expected)


@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8)])
def test_alpha_0_makes_a_product_of_0_whatever_the_operands_hold(shape: tuple[int, ...]) -> None:
    matmul, a = Kernels(tuned=False).matmul, torch.full(shape, torch.nan)
    bias, out = torch.randn(shape[-2]), torch.randn(*shape[:-1], shape[-2])
    assert not matmul(a, a.mT, alpha=0.0).any()
    close(matmul(a, a.mT, bias=bias, alpha=0.0), bias.expand(out.shape))
    close(matmul(a, a.mT, out.clone(), alpha=0.0, beta=0.5), out / 2)


LAYERS = torch.eye(2) * torch.tensor([1.0, 2.0])[:, None, None]
SHARED: list[tuple[Any, Any]] = [  # operands, and an out of their shape whose elements share memory
    (LAYERS, torch.as_strided(torch.zeros(4), (2, 2, 2), (0, 2, 1))),
    (torch.eye(3), torch.as_strided(torch.zeros(5), (3, 3), (1, 1))),
    (torch.eye(3), torch.zeros(3, 1).expand(3, 3)),
]


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("factors", [{}, {"alpha": 2.0}, {"beta": 1.0, "activation": "relu"}])
@pytest.mark.parametrize("number", range(len(SHARED)))
def test_an_out_whose_elements_share_memory_is_refused(
    number: int, factors: dict[str, Any], tuned: bool
) -> None:
    a, out = SHARED[number]
    with pytest.raises(InvalidProblem, match="elements of out must not share memory"):
        Kernels(tuned).matmul(a, a, out, **factors)
    assert not out.any()


def views_of_zeros(batch: int, m: int, n: int) -> dict[str, Any]:
    return {
        "turned": torch.zeros(n, m, batch).permute(2, 1, 0),
        "sliced": torch.zeros(2 * batch, m + 3, 3 * n)[::2, 2:-1, 1::3],
        "batch last": torch.zeros(m, n, batch).permute(2, 0, 1),
        "one matrix": torch.zeros(m, n).as_strided((1, m, n), (0, n, 1)),
        "empty": torch.zeros(1, 1, 1).expand(0, m, n),
    }


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("name", views_of_zeros(1, 1, 1))
def test_an_out_that_is_a_view_is_written_where_it_lies(name: str, tuned: bool) -> None:
    batch = {"one matrix": 1, "empty": 0}.get(name, 3)
    a, b = torch.randn(batch, 4, 6), torch.randn(batch, 6, 5)
    for factors in ({}, {"alpha": 2.0}):
        out = views_of_zeros(max(batch, 1), 4, 5)[name]
        assert Kernels(tuned).matmul(a, b, out, **factors) is out
        close(out, factors.get("alpha", 1.0) * (a @ b))


@pytest.mark.filterwarnings("ignore:An output with one or more elements")  # by torch, for one row
@pytest.mark.parametrize("factors", [{}, {"alpha": 2.0}])
@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,))],
)
def test_an_out_of_another_shape_is_refused_and_not_resized(
    left: tuple[int, ...], right: tuple[int, ...], factors: dict[str, Any]
) -> None:
    a, b = torch.randn(left), torch.randn(right)
    for shape in ((1,), (0,), (7, *(a @ b).shape)):
        out = torch.zeros(shape)
        with pytest.raises(InvalidProblem, match="out must have the shape"):
            Kernels().matmul(a, b, out, **factors)
        assert out.shape == shape
    close(Kernels().matmul(a, b, torch.zeros((a @ b).shape), **factors), factors.get("alpha", 1.0) * (a @ b))


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_factor_that_wants_a_gradient_is_refused(name: str) -> None:
    matmul, a, factor = Kernels().matmul, torch.randn(3, 3), torch.tensor(2.0, requires_grad=True)
    with pytest.raises(InvalidProblem, match=rf"{name} gets no gradient; give {name}\.detach\(\)"):
        matmul(a, a, torch.zeros(3, 3), **{name: factor})
    with pytest.raises(InvalidProblem, match=f"{name} gets no gradient"):
        torch.func.grad(lambda one: matmul(a, a, torch.zeros(3, 3), **{name: one}).sum())(factor.detach())
    expected = a @ a * (2.0 if name == "alpha" else 1.0)
    close(matmul(a, a, torch.zeros(3, 3), **{name: factor.detach()}), expected)
    with torch.no_grad():
        close(matmul(a, a, torch.zeros(3, 3), **{name: factor}), expected)


def test_a_view_of_negated_numbers_has_their_sign(kernels: Kernels) -> None:
    row, b = torch.randn(4, 1, dtype=torch.complex64).conj().imag.T, torch.randn(4, 5)
    matmul = kernels.matmul
    for a in (row, row.resolve_neg().T.contiguous().T, row):
        close(matmul(a, b), a.resolve_neg() @ b)
    bias = torch._neg_view(torch.randn(5))
    close(matmul(torch.randn(3, 4) * 0, b, bias=bias), bias.resolve_neg().expand(3, 5))


def test_a_gradient_that_needs_what_out_held_is_refused(kernels: Kernels) -> None:
    a, b, out = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    loss = (torch.ones(3, 5, requires_grad=True) * out).sum()  # its gradient is what out holds
    kernels.matmul(a, b, out=out)
    assert kernels.matmul.stats == {"tuned: exact": 1}
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def doubles(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_gradients_are_those_of_the_function(activation: str) -> None:
    operands = (doubles(6, 5), doubles(5, 3), doubles(3))
    assert torch.autograd.gradcheck(lambda *x: tilewright_torch.matmul(*x, activation), operands)


@pytest.mark.usefixtures("kernels")
def test_gradients_of_batches_and_of_gradients() -> None:
    product = tilewright_torch.matmul
    assert torch.autograd.gradcheck(product, (doubles(2, 6, 5), doubles(2, 5, 3)))
    assert torch.autograd.gradcheck(product, (doubles(2, 6, 5), doubles(5, 3)))
    assert torch.autograd.gradgradcheck(product, (doubles(4, 5), doubles(5, 3)))


@pytest.mark.usefixtures("kernels")
def test_gradients_of_complex_numbers() -> None:
    a, b, bias, rows = (
        torch.randn(*shape, dtype=torch.complex128, requires_grad=True)
        for shape in ((2, 6, 5), (5, 3), (3,), (2, 5, 3))
    )
    assert torch.autograd.gradcheck(tilewright_torch.matmul, (a, b, bias))
    assert torch.autograd.gradcheck(tilewright_torch.matmul, (a, rows))


def of_autograd(product: Callable[..., Any], a: Any, b: Any, incoming: Any) -> tuple[Any, ...]:
    operands = [x.clone().requires_grad_() for x in (a, b)]
    found: tuple[Any, ...] = torch.autograd.grad(product(*operands), operands, incoming)
    return found


def of_transform(product: Callable[..., Any], a: Any, b: Any, incoming: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = torch.func.grad(lambda *x: (product(*x) * incoming).sum(), (0, 1))(a, b)
    return found


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("way", [of_autograd, of_transform])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_the_gradient_of_relu_is_finite_where_that_of_torch_is(way: Callable[..., Any], value: float) -> None:
    a, b = torch.randn(6, 5), torch.randn(5, 3)
    if value is torch.nan:
        a[0, 0] = value
    incoming = torch.where(a @ b <= 0, value, 1.0)  # where the units are inactive
    mine = way(lambda a, b: tilewright_torch.matmul(a, b, None, "relu"), a, b, incoming)
    theirs = way(lambda a, b: torch.relu(a @ b), a, b, incoming)
    assert theirs[0].isfinite().all()
    torch.testing.assert_close(mine, theirs, equal_nan=True)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: torch.func.grad(lambda *x: f(*x).square().sum(), (0, 1, 2)),
    "jacrev": lambda f: torch.func.jacrev(f, (0, 1, 2)),
    "vmap": lambda f: torch.func.vmap(f, (0, None, None)),
    "grad of vmap": lambda f: torch.func.grad(lambda a, *x: torch.func.vmap(f, (0, None, None))(a, *x).sum()),
    "grad of grad": lambda f: torch.func.grad(lambda *x: TRANSFORMS["grad"](f)(*x)[0].square().sum()),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_transforms_of_the_operator_are_those_of_the_function(
    kernels: Kernels, activation: str, name: str
) -> None:
    a, b, bias = torch.randn(5, 4), torch.randn(4, 6), torch.randn(6)
    a = torch.randn(3, 5, 4) if "vmap" in name else a
    got = TRANSFORMS[name](lambda *x: torch.ops.tilewright.matmul(*x, activation))(a, b, bias)
    plain = TRANSFORMS[name](lambda a, b, bias: activated(a @ b + bias, Activation(activation)))
    close(got, plain(a, b, bias))
    assert "tuned: exact" in kernels.matmul.stats


@pytest.mark.filterwarnings("ignore::FutureWarning:torch.*")
def test_forward_derivatives_of_the_operator_are_refused() -> None:
    a = torch.randn(3, 4)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda a: torch.ops.tilewright.matmul(a, a.mT), (a,), (a,))


@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore")
def test_the_operator_passes_torch_own_checks() -> None:
    a, b, bias = torch.randn(6, 5), torch.randn(5, 3), torch.randn(3)
    for grad, activation in itertools.product((False, True), ("none", "relu")):
        operands = [x.clone().requires_grad_(grad) for x in (a, b, bias)]
        torch.library.opcheck(torch.ops.tilewright.matmul.default, (*operands, activation))


HALF = torch.bfloat16
REFUSED: list[tuple[tuple[Any, ...], str]] = [
    (
        (torch.ones(8, 16, dtype=HALF), torch.ones(16, 4, dtype=HALF), torch.ones(4)),
        "the bias must have the element type of a; .*bfloat16",
    ),
    (
        (torch.ones(2, 8, 16).half(), torch.ones(2, 16, 4).half(), torch.ones(4)),
        "the bias must have the element type of a; .*float16",
    ),
    ((torch.ones(8, 16), torch.ones(16, 4).double()), "b must have the element type of a"),
    ((torch.ones(8, 16), torch.ones(16, 4), torch.ones(8, 4)), "the bias must have the shape"),
    ((torch.ones(8, 16), torch.ones(16, 4), torch.ones(8, 1)), "the bias must have the shape"),
    ((torch.ones(16), torch.ones(16, 4)), "must be matrices"),
]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_the_operator_refuses_in_a_graph_what_it_refuses_outside(
    kernels: Kernels, number: int, own: bool
) -> None:
    tilewright_torch.kernels_of(None if own else kernels)
    operands, reason = REFUSED[number]
    with pytest.raises(InvalidProblem, match=reason):
        tilewright_torch.matmul(*operands)
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(InvalidProblem, match=reason):
        tilewright_torch.matmul(*map(mode.from_tensor, operands))


def under_autocast(product: Callable[..., Any], a: Any, b: Any) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=HALF):
        d = product(a, b)
    return d, *torch.autograd.grad(d.float().square().sum(), (a, b))


def with_transform(product: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: torch.func.vmap(lambda row: product(row[None], b)[0])(a)


def graph_of(product: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(product, backend="aot_eager", fullgraph=True)


@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [lambda product: product, with_transform, graph_of])
def test_the_operator_is_cast_by_autocast_as_the_product_of_torch(way: Callable[..., Any]) -> None:
    a, b = (torch.randn(*shape, requires_grad=True) for shape in ((8, 16), (16, 4)))
    expected = under_autocast(torch.matmul, a, b)
    for mine, theirs in zip(under_autocast(way(tilewright_torch.matmul), a, b), expected, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=0.2)


def test_autocast_leaves_double_precision_and_runs_tuned(kernels: Kernels) -> None:
    a, b = doubles(8, 16), doubles(16, 4)
    assert [x.dtype for x in under_autocast(tilewright_torch.matmul, a, b)] == [torch.float64] * 3
    assert kernels.matmul.stats == {"tuned: exact": 3}


def test_a_model_is_routed_and_back(kernels: Kernels) -> None:
    plain, routed, x = model(), model(), torch.randn(2, 7, 24)
    with torch.no_grad(), tilewright_torch.use(routed, kernels) as what:
        close(routed(x), plain(x))
        assert list(what.layers) == ["0", "2"]
        assert kernels.matmul.stats == {"tuned: exact": 2}
        copied = copy.deepcopy(routed)
        copied.load_state_dict({name: 2 * value for name, value in routed.state_dict().items()})
        assert not torch.equal(copied[0](x), routed[0](x))
        assert type(copied[0]) is torch.nn.Linear
        before = kernels.matmul.stats
    with torch.no_grad():
        close(routed(x), plain(x))
    assert [type(layer) for layer in what.layers.values()] == [torch.nn.Linear] * 2
    assert kernels.matmul.stats == before == {"tuned: exact": 3}
    what.undo()


def saved(layer: Any) -> Any:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def replica(layer: Any) -> Any:
    return layer._replicate_for_data_parallel()


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, saved, replica])
def test_a_copy_of_a_routed_layer_has_weights_of_its_own_and_is_not_routed_after_undo(
    kernels: Kernels, way: Callable[[Any], Any]
) -> None:
    layer, x = torch.nn.Linear(24, 8), torch.randn(5, 24)
    with torch.no_grad(), tilewright_torch.use(layer, kernels):
        copied = way(layer)
        copied._parameters = {"weight": torch.zeros(8, 24), "bias": torch.zeros(8)}
        assert not copied(x).any()
        close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    before = products(kernels)
    assert not copied(x).any()
    assert products(kernels) == before
    if way is not replica:  # which lives for one call
        assert tilewright_torch.use(copied, kernels).layers == {"": copied}


def test_undo_reaches_a_layer_that_torch_gave_another_class(kernels: Kernels) -> None:
    layer, x = torch.nn.Linear(24, 8), torch.randn(5, 24)
    with torch.no_grad(), tilewright_torch.use(layer, kernels):
        torch.nn.utils.parametrizations.weight_norm(layer)
        close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
        before = products(kernels)
    layer(x)
    assert (before, products(kernels)) == (1, 1)


def test_training_through_routed_layers(kernels: Kernels) -> None:
    plain, routed, x = model(), model(), torch.randn(9, 24)
    with tilewright_torch.use(routed, kernels):
        for one in (plain, routed):
            one(x).square().sum().backward()
    for mine, theirs in zip(routed.parameters(), plain.parameters(), strict=True):
        close(mine.grad, theirs.grad)
    assert kernels.matmul.stats["tuned: exact"] >= 2 + 3  # two forward, three back: x wants none


def test_without_a_kernel_torch_runs_and_the_reason_is_counted() -> None:
    none, routed, x = Kernels(tuned=False), model(), torch.randn(9, 24)
    with torch.no_grad(), tilewright_torch.use(routed, none):
        torch.testing.assert_close(routed(x), model()(x), rtol=0, atol=0)
    assert none.matmul.stats == {"vendor: nothing tuned": 2}


def trained(routed: Any, x: Any) -> None:
    routed(x).square().sum().backward()


def without_gradients(routed: Any, x: Any) -> None:
    with torch.no_grad():
        routed(x)


def compiled(routed: Any, x: Any) -> None:
    trained(torch.compile(routed, backend="aot_eager", fullgraph=True), x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [without_gradients, trained, compiled])
def test_two_models_run_the_kernels_of_their_own_clients(kernels: Kernels, way: Any) -> None:
    mine, other, x = (Kernels(), model()), (Kernels(), model()), torch.randn(9, 24)
    first = tilewright_torch.use(mine[1], mine[0])
    second = tilewright_torch.use(other[1], other[0])
    counts = []
    for undo in (None, first.undo, second.undo):
        if undo:
            undo()
        for _, routed in (mine, other):
            way(routed, x)
        counts.append((products(mine[0]), products(other[0])))
    once = 2 if way is without_gradients else 5  # two forward, three back: x wants no gradient
    assert counts == [(once, once), (once, 2 * once), (once, 2 * once)]
    assert products(kernels) == 0


class Scaled(torch.Tensor):  # type: ignore[misc]
    """A weight that makes of a linear layer another function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *others = args
            with torch._C.DisableTorchFunctionSubclass():
                return torch.nn.functional.linear(x, 10 * weight, *others)
        return super().__torch_function__(func, types, args, kwargs)


class Quantised(torch.Tensor):  # type: ignore[misc]
    """A weight of small integers, which knows linear layers and nothing else."""

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=torch.float32)

    def __init__(self, held: Any) -> None:
        self.held = held

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *others = args
            return torch.nn.functional.linear(x, weight.held.float() / 8, *others)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), _kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Quantised(args[0].held)
        raise NotImplementedError(func)


def weight_of(make: Callable[[Any], Any], learns: bool = False) -> Callable[[Any], None]:
    def change(layer: Any) -> None:
        layer.weight = torch.nn.Parameter(make(layer.weight.detach()), requires_grad=learns)

    return change


def bias_of_one(layer: Any) -> None:
    layer.bias = torch.nn.Parameter(torch.ones(1))


def one_row(layer: Any) -> None:
    layer.weight, layer.bias = torch.nn.Parameter(layer.weight.detach()[0]), None


def ragged(layout: Any) -> Callable[[], Any]:
    return lambda: torch.nested.nested_tensor([torch.ones(3, 16), torch.ones(5, 16)], layout=layout)


def nothing(_layer: Any) -> None:
    pass


SCALED, OWN = weight_of(lambda weight: weight.as_subclass(Scaled)), torch.linspace(-1, 1, 128).reshape(8, 16)
ODD: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {
    "a scaled weight": (SCALED, lambda: OWN),
    "a scaled weight and x learns": (SCALED, lambda: OWN.clone().requires_grad_()),
    "a scaled weight learns": (weight_of(lambda weight: weight.as_subclass(Scaled), True), lambda: OWN),
    "a quantised weight": (weight_of(lambda weight: Quantised((20 * weight).char())), lambda: OWN),
    "a quantised weight and x learns": (
        weight_of(lambda weight: Quantised((20 * weight).char())), lambda: OWN.clone().requires_grad_(),
    ),
    "nested x": (nothing, ragged(torch.strided)),
    "jagged x": (nothing, ragged(torch.jagged)),
    "mkldnn x": (nothing, lambda: OWN.to_mkldnn()),
    "sparse x": (nothing, lambda: OWN.to_sparse()),
    "a bias of one": (bias_of_one, lambda: OWN),
    "a weight of one row": (one_row, lambda: OWN),
}  # fmt: skip


def of_layer(layer: Any, x: Any, grad: bool) -> tuple[Any, list[Any]]:
    """What a layer returns: its type and layout, then its value and all gradients."""
    with torch.set_grad_enabled(grad):
        y = layer(x)
    value = y.values() if y.is_nested and y.layout is torch.jagged else y
    value = torch.cat([*value.unbind()]) if value.is_nested else value
    value = value.to_dense() if value.layout is not torch.strided else value
    if value.requires_grad:
        value.square().sum().backward()
    gradients = [learns.grad for learns in (*layer.parameters(), x)]
    return (type(y), y.layout, y.is_nested), [value.detach(), *gradients]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("grad", [False, True])
def test_use_changes_neither_value_nor_type_nor_gradient(kernels: Kernels, grad: bool, name: str) -> None:
    change, x = ODD[name]
    plain = torch.nn.Linear(16, 12)
    routed = copy.deepcopy(plain)
    for layer in (plain, routed):
        change(layer)
    expected, numbers = of_layer(plain, x(), grad)
    with tilewright_torch.use(routed, kernels):
        got, mine = of_layer(routed, x(), grad)
    assert got == expected
    close(mine, numbers)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [SCALED, bias_of_one, one_row])
def test_a_compiled_layer_is_the_same_function(kernels: Kernels, change: Callable[[Any], None]) -> None:
    layer = torch.nn.Linear(16, 12)
    change(layer)
    compiled = functools.partial(torch.compile, backend="eager", fullgraph=True)
    expected = compiled(layer)(OWN)
    with tilewright_torch.use(layer, kernels):
        close(compiled(layer)(OWN), expected)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_has_the_operator(kernels: Kernels, strict: bool) -> None:
    with tilewright_torch.use(model(), kernels) as routed, torch.no_grad():
        [layer] = itertools.islice(routed.layers.values(), 1)
        exported = torch.export.export(layer, (torch.randn(3, layer.in_features),), strict=strict)
    assert "tilewright.matmul" in str(exported.graph)


def test_use_and_undo_leave_the_kernels_of_the_operator_alone(kernels: Kernels) -> None:
    a, other = torch.randn(4, 4), Kernels()
    routed = tilewright_torch.use(model(), other)
    tilewright_torch.matmul(a, a)
    routed.undo()
    tilewright_torch.matmul(a, a)
    assert (products(kernels), products(other)) == (2, 0)


def test_layers_that_are_routed_already_stay_with_their_client() -> None:
    first, second, routed = Kernels(), Kernels(), model()
    with tilewright_torch.use(routed, first):
        later = tilewright_torch.use(routed, second)
        assert later.layers == {}
        later.undo()
        without_gradients(routed, torch.randn(9, 24))
    assert (products(first), products(second)) == (2, 0)


def test_a_name_without_kernels_stands_for_those_of_torch() -> None:
    a = torch.randn(4, 4)
    close(torch.ops.tilewright.matmul(a, a, None, "none", "gone"), a @ a)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_routed_model_compiles_in_one_graph(kernels: Kernels, backend: str) -> None:
    routed, x = model(), torch.randn(2, 7, 24)
    with tilewright_torch.use(routed, kernels):
        compiled = torch.compile(routed, backend=backend, fullgraph=True)
        close(compiled(x), model()(x))
        compiled(x).sum().backward()
    assert kernels.matmul.stats["tuned: exact"] > 0
    assert routed[0].weight.grad is not None
