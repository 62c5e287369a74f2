"""Any tensors of torch on the CPU: ``matmul`` gives torch's answer or an error, services get their values."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from array_samples import fit_together, scalars, shapes, tuned
from dlpack_samples import Produced, check_sent, why_not_sent
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tilewright import Activation
from tilewright.errors import InvalidProblem
from tilewright.http.tensors import from_array, host_array, to_array
from tilewright.matmul.matmul import LocalMatmul

torch = pytest.importorskip("torch", reason="torch is not installed")
activated = pytest.importorskip("tilewright.matmul.torch_arrays").activated

# NOTE: warnings that torch raises about itself are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
MATMUL = LocalMatmul(tuned)
REFUSED = (InvalidProblem, RuntimeError, TypeError, IndexError, ValueError)  # ours, and torch's own
FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
TYPES = (*FLOATS, "int32", "int64", "int8", "uint8", "bool", "complex64")
NARROW = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


@dataclasses.dataclass
class Piece:
    """A tensor, the memory that it is a part of, and where in it the tensor's elements are."""

    tensor: Any
    memory: Any
    elements: Any
    odd: bool  # a view of negated or conjugate numbers, or it wants a gradient


@st.composite
def pieces(draw: DrawFn, shape: tuple[int, ...], types: tuple[str, ...]) -> Piece:
    """A tensor of a shape: of any type, strides, offset, class and bits."""
    name, seed = draw(st.sampled_from(types)), draw(st.integers(0, 9))
    dtype = getattr(torch, name)
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    steps = [draw(st.sampled_from((1, 1, 1, 2))) for _ in shape]
    pads = [draw(st.sampled_from((0, 0, 0, 3))) for _ in shape]
    outer = [shape[axis] * steps[axis] + pads[axis] for axis in order]
    offset = draw(st.sampled_from((0, 0, 1)))
    memory = torch.zeros(int(np.prod(outer)) + offset, dtype=dtype)

    def view_of(flat: Any) -> Any:
        whole = flat[offset:].reshape(outer).permute(*(int(axis) for axis in np.argsort(order)))
        return whole[tuple(slice(None, None, step) for step in steps)][tuple(map(slice, shape))]

    low = -3 if dtype.is_floating_point or dtype.is_complex else 0
    tensor = view_of(memory)
    tensor.copy_(torch.from_numpy(np.random.default_rng(seed).integers(low, 4, shape)).to(dtype))
    elements = torch.zeros(memory.shape, dtype=torch.bool)
    view_of(elements).fill_(True)
    kind = draw(st.sampled_from(("plain",) * 6 + ("parameter", "grad", "neg", "conj")))
    numbers = dtype.is_floating_point or dtype.is_complex
    if kind in ("parameter", "grad") and numbers:
        tensor = torch.nn.Parameter(tensor, kind == "grad")
    elif kind == "neg" and name != "bool":
        tensor = torch._neg_view(tensor)
    elif kind == "conj" and dtype.is_complex:
        tensor = tensor.conj()
    return Piece(tensor, memory, elements, kind in ("grad", "neg", "conj"))


@st.composite
def calls(draw: DrawFn) -> tuple[dict[str, Piece | None], dict[str, Any], bool]:
    """Operands and scalars of one product, most of which fit together, and whether gradients are recorded."""
    types = draw(st.sampled_from((TYPES, *((one,) for one in FLOATS))))
    arrays = {
        name: None if shape is None else draw(pieces(shape, types)) for name, shape in draw(shapes()).items()
    }
    return arrays, draw(scalars()), draw(st.booleans())


def held_by(tensor: Any) -> Any:
    """The values of a tensor, without its bits and gradient."""
    return tensor.detach().resolve_conj().resolve_neg()


def must_run(arrays: dict[str, Piece | None], factors: dict[str, Any]) -> bool:
    """Whether there is no reason to refuse a product: one type, plain tensors, and shapes that fit."""
    found = [piece for piece in arrays.values() if piece]
    types = {piece.tensor.dtype for piece in found}
    one = len(types) == 1 and types <= {getattr(torch, name) for name in FLOATS}
    fits = fit_together(
        {name: piece and tuple(piece.tensor.shape) for name, piece in arrays.items()}, factors
    )
    return one and fits and not any(piece.odd for piece in found)


def formula(a: Any, b: Any, c: Any, bias: Any, factors: dict[str, Any]) -> Any:
    """``act(alpha * a @ b + beta * c + bias)`` in a type that holds all values here."""
    wide = (
        torch.complex128
        if any(x is not None and x.dtype.is_complex for x in (a, b, c, bias))
        else torch.float64
    )
    d = factors["alpha"] * (a.to(wide) @ b.to(wide))
    d = d if factors["beta"] == 0.0 else d + factors["beta"] * c.to(wide)
    d = d if bias is None else d + bias.to(wide)
    return activated(d, Activation(factors["activation"] or "none"))


@settings(max_examples=300, deadline=None)
@given(call=calls())
def test_any_tensors(call: tuple[dict[str, Piece | None], dict[str, Any], bool]) -> None:
    arrays, factors, grad = call
    before = {name: piece and piece.memory.detach().clone() for name, piece in arrays.items()}
    copies = {name: piece and held_by(piece.tensor).clone() for name, piece in arrays.items()}
    tensors = {name: piece and piece.tensor for name, piece in arrays.items()}
    got, out = None, arrays["out"]
    try:
        with torch.set_grad_enabled(grad):
            got = MATMUL(*tensors.values(), **factors)
    except REFUSED:
        if must_run(arrays, factors):
            raise
    for name, piece in arrays.items():
        if piece is not None and (name != "out" or got is None):
            assert torch.equal(piece.memory, before[name]), f"{name} was written to"
    if got is None:
        return
    want = formula(*copies.values(), factors)
    if out is not None:
        assert got is out.tensor
        assert torch.equal(out.memory[~out.elements], before["out"][~out.elements])
    assert got.shape == want.shape
    integers = not (got.dtype.is_floating_point or got.dtype.is_complex)
    if got.dtype is torch.bool:
        want = want != 0
    elif integers:  # as they wrap around
        want = want.real.to(torch.int64).to(got.dtype)
    torch.testing.assert_close(held_by(got), want.to(got.dtype), rtol=2e-2, atol=2e-2)
    learns = [t for n, t in tensors.items() if n in ("a", "b", "bias") and t is not None and t.requires_grad]
    assert out is not None or got.requires_grad is bool(grad and learns)


@st.composite
def produced(draw: DrawFn) -> Produced:
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 5)), min_size=1, max_size=3)))
    names = (
        "float16",
        "float32",
        "float64",
        "int8",
        "uint8",
        "int32",
        "bfloat16",
        "bool",
        "int64",
        "complex64",
    )
    piece = draw(pieces(shape, names))
    tensor, name = piece.tensor, str(piece.tensor.dtype).removeprefix("torch.")
    values = held_by(tensor)
    if name == "bfloat16":
        values = values.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        values = values.numpy()
    instead = f".view(torch.{NARROW[name]}).numpy().view(ml_dtypes.{name})" if name in NARROW else ""
    instead = f"a.detach().cpu(){instead}"
    refused = instead if tensor.requires_grad or tensor.is_conj() else why_not_sent(name, instead)
    return Produced(tensor, values.copy(), refused)


@settings(max_examples=200, deadline=None)
@given(one=produced())
def test_tensors_are_sent(one: Produced) -> None:
    check_sent(one)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", NARROW)
def test_what_the_message_says_to_give_is_sent(name: str, grad: bool) -> None:
    b = torch.arange(6.0).reshape(3, 2).t().to(getattr(torch, name)).requires_grad_(grad)
    with pytest.raises(InvalidProblem, match=r"; give b\.detach\(\)\.cpu\(\)") as caught:
        host_array("b", b)
    advice = str(caught.value).partition("; give ")[2]
    instead = eval(advice, {"torch": torch, "ml_dtypes": ml_dtypes, "b": b})
    assert to_array(from_array("b", instead)).tolist() == b.tolist()


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_a_tensor_without_dense_memory_is_refused_with_what_to_give(kind: str) -> None:
    tensor = torch.ones(2, 2).to_sparse() if kind == "sparse" else torch.ones(2, 2, device="meta")
    with pytest.raises(InvalidProblem, match=r"; give a dense tensor of real numbers, such as a\.detach"):
        host_array("a", tensor)
