"""``matmul`` gives of any arrays what NumPy gives for copies, or an error, and writes to ``out`` alone."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
from host_samples import activate, artifact_of, config_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tilewright import Activation, DType, GemmProblem
from tilewright.errors import InvalidProblem
from tilewright.matmul.matmul import Choice, LocalMatmul

REFUSED = (InvalidProblem, ValueError, TypeError)  # ours, and NumPy's own
FLOATS = (">f4", "<f4", "=f4", "=f4", "=f4", "=f8", ">f8")
TYPES = (*FLOATS, "=f2", "=i4", "=i8", ">i4", "=u1", "?", "=c8", "=f4", "=f4")


def tuned(problem: GemmProblem, _device: int) -> Choice:
    """A kernel of family host for the types that it computes."""
    if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return Choice(None, f"nothing is tuned for {problem.dtype}")
    same = dataclasses.replace(problem, m=64, n=64, k=64, batch=1)
    return Choice(artifact_of(config_of(kc=32, mc=32, nc=64), same), "exact")


MATMUL = LocalMatmul(tuned)


@dataclasses.dataclass
class Piece:
    """An array, and the memory that it is a part of."""

    array: Any
    memory: Any


@st.composite
def pieces(draw: DrawFn, shape: tuple[int, ...], types: tuple[str, ...] = TYPES) -> Piece:
    """An array of a shape: of any type, byte order, strides, alignment, flags and subclass."""
    dtype, seed = np.dtype(draw(st.sampled_from(types))), draw(st.integers(0, 9))
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    steps = [draw(st.sampled_from((1, 1, 1, 2, -1))) for _ in shape]
    pads = [draw(st.sampled_from((0, 0, 0, 3))) for _ in shape]
    outer = [shape[axis] * abs(steps[axis]) + pads[axis] for axis in order]
    size, offset = int(np.prod(outer)) * dtype.itemsize, draw(st.sampled_from((0, 0, 0, 1, 8)))
    memory = np.full(size + offset + 1, 7, "u1")
    whole = memory[offset : offset + size].view(dtype).reshape(outer).transpose(np.argsort(order))
    array = whole[tuple(slice(None, None, step) for step in steps)][tuple(map(slice, shape))]
    array[...] = np.random.default_rng(seed).integers(-3 if dtype.kind in "ifc" else 0, 4, shape)
    array.flags.writeable = draw(st.integers(0, 7)) > 0
    kind = draw(st.sampled_from(("plain",) * 6 + ("masked", "matrix"))) if len(shape) == 2 else "plain"
    if kind == "masked":
        return Piece(np.ma.array(array, mask=np.random.default_rng(seed).random(shape) < 0.2), memory)
    return Piece(array.view(np.matrix) if kind == "matrix" else array, memory)


@st.composite
def calls(draw: DrawFn) -> tuple[dict[str, Piece | None], dict[str, Any]]:
    """Operands and scalars of one product; most fit together."""
    extent = st.sampled_from((0, 1, 2, 3, 5, 9))
    m, n, k = draw(extent), draw(extent), draw(extent)
    batch = draw(st.sampled_from(((), (), (), (2,), (1,), (2, 3), (0,))))
    types = draw(st.sampled_from((TYPES, ("=f4",), ("=f4",), ("=f8",))))
    shapes: dict[str, tuple[int, ...] | None] = {
        "a": (*batch, m, k) if draw(st.integers(0, 9)) else (k,),
        "b": (*batch, k, n) if draw(st.booleans()) else (k, n),
        "out": (*batch, m, n) if draw(st.booleans()) else None,
        "bias": draw(st.sampled_from((None, None, (n,), (n,), (m, 1)))),
    }
    arrays = {name: None if shape is None else draw(pieces(shape, types)) for name, shape in shapes.items()}
    scalars = {
        "activation": draw(st.sampled_from((None, None, "relu", "gelu"))),
        "alpha": draw(st.sampled_from((1.0, 1.0, 2.0, -0.5))),
        "beta": draw(st.sampled_from((0.0, 0.0, 1.0, -2.0))),
    }
    return arrays, scalars


def values_of(array: Any) -> Any:
    """A copy in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=True)


def formula(a: Any, b: Any, c: Any, bias: Any, scalars: dict[str, Any]) -> Any:
    """``act(alpha * a @ b + beta * c + bias)`` by NumPy."""
    d = a @ b
    d, c = (x if isinstance(x, np.ma.MaskedArray) else np.asarray(x) for x in (d, c))
    one = d.dtype.type
    d = d if scalars["alpha"] == 1.0 else d * one(scalars["alpha"])
    d = d if scalars["beta"] == 0.0 else d + one(scalars["beta"]) * c
    d = d if bias is None else d + bias
    return activate(d, Activation(scalars["activation"])) if scalars["activation"] else d


def check_memory(piece: Piece, before: Any) -> None:
    """Nothing beside the elements of an array differs from before."""
    was, now = before.copy(), piece.memory.copy()
    piece.memory[:] = 0
    plain = np.asarray(piece.array)
    plain[...] = np.ones((), plain.dtype)
    elements = piece.memory != 0
    piece.memory[:] = 255
    plain[...] = np.zeros((), plain.dtype)
    elements |= piece.memory != 255
    piece.memory[:] = now
    assert (was[~elements] == now[~elements]).all(), "memory beside out was written to"


@settings(max_examples=300, deadline=None)
@given(call=calls())
def test_any_arrays(call: tuple[dict[str, Piece | None], dict[str, Any]]) -> None:
    arrays, scalars = call
    given_arrays = {name: piece and piece.array for name, piece in arrays.items()}
    before = {name: piece and piece.memory.copy() for name, piece in arrays.items()}
    copies = {name: None if array is None else values_of(array) for name, array in given_arrays.items()}
    got, out = None, arrays["out"]
    with contextlib.suppress(*REFUSED):
        got = MATMUL(*given_arrays.values(), **scalars)
    for name, piece in arrays.items():
        fixed = name != "out" or got is None or not piece or not piece.array.flags.writeable
        assert piece is None or not fixed or (piece.memory == before[name]).all(), f"{name} was written to"
    if got is None:
        return
    try:
        want = formula(copies["a"], copies["b"], copies["out"], copies["bias"], scalars)
        if out is not None:  # as NumPy does with the product of a vector
            want = np.broadcast_to(want, out.array.shape, subok=True)
    except ValueError:  # NumPy's masks and matrices do not multiply all shapes, and a matrix has two axes
        assert any(type(copy) is not np.ndarray for copy in (copies["a"], copies["b"]))
        return
    if out is not None:
        assert got is out.array
        check_memory(out, before["out"])
        assert np.can_cast(want.dtype, out.array.dtype, "same_kind"), f"{want.dtype} became {got.dtype}"
    assert got.shape == want.shape
    hidden = np.ma.getmaskarray(want) | np.ma.getmaskarray(got)
    got, want = (np.where(hidden, 0, np.ma.getdata(one)) for one in (got, want))
    np.testing.assert_allclose(got.astype("c16"), want.astype("c16"), rtol=1e-2, atol=1e-2)
