"""Products of arrays for property tests: shapes, NumPy arrays of every kind, and what NumPy makes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from host_samples import activate, artifact_of, config_of
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tilewright import Activation, DType, GemmProblem
from tilewright.matmul.matmul import Choice

FLOATS = (">f4", "<f4", "=f4", "=f4", "=f4", "=f8", ">f8")
TYPES = (*FLOATS, "=f2", "=i4", "=i8", ">i4", "=u1", "?", "=c8", "=f4", "=f4")
Shapes = dict[str, tuple[int, ...] | None]
"""Of a, b, out and bias; None for an operand that is not given."""


def tuned(problem: GemmProblem, _device: int) -> Choice:
    """A kernel of family host for the types that it computes."""
    if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return Choice(None, f"nothing is tuned for {problem.dtype}")
    same = dataclasses.replace(problem, m=64, n=64, k=64, batch=1)
    return Choice(artifact_of(config_of(kc=32, mc=32, nc=64), same), "exact")


@dataclasses.dataclass
class Piece:
    """An array, and the memory that it is a part of."""

    array: Any
    memory: Any


@st.composite
def pieces(
    draw: DrawFn, shape: tuple[int, ...], types: tuple[str, ...] = TYPES, subclasses: bool = True
) -> Piece:
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
    odd = subclasses and len(shape) == 2
    kind = draw(st.sampled_from(("plain",) * 6 + ("masked", "matrix"))) if odd else "plain"
    if kind == "masked":
        return Piece(np.ma.array(array, mask=np.random.default_rng(seed).random(shape) < 0.2), memory)
    return Piece(array.view(np.matrix) if kind == "matrix" else array, memory)


@st.composite
def shapes(draw: DrawFn) -> Shapes:
    """Shapes of the operands of one product; most fit together."""
    extent = st.sampled_from((0, 1, 2, 3, 5, 9))
    m, n, k = draw(extent), draw(extent), draw(extent)
    batch = draw(st.sampled_from(((), (), (), (2,), (1,), (2, 3), (0,))))
    return {
        "a": (*batch, m, k) if draw(st.integers(0, 9)) else (k,),
        "b": (*batch, k, n) if draw(st.booleans()) else (k, n),
        "out": (*batch, m, n) if draw(st.booleans()) else None,
        "bias": draw(st.sampled_from((None, None, (n,), (n,), (m, 1)))),
    }


@st.composite
def scalars(draw: DrawFn) -> dict[str, Any]:
    """Activation and factors of one product."""
    return {
        "activation": draw(st.sampled_from((None, None, "relu", "gelu"))),
        "alpha": draw(st.sampled_from((1.0, 1.0, 2.0, -0.5))),
        "beta": draw(st.sampled_from((0.0, 0.0, 1.0, -2.0))),
    }


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


def fit_together(shapes: Shapes, scalars: dict[str, Any]) -> bool:
    """Whether ``matmul`` must compute a product of these shapes, if all are of one floating-point type."""
    a, b, out, bias = (shapes[name] for name in ("a", "b", "out", "bias"))
    if a is None or b is None or len(a) < 2 or b[:-2] not in ((), a[:-2]):
        return False
    fits = out in (None, (*a[:-1], b[-1])) and bias in (None, (b[-1],))
    return fits and (out is not None or not scalars["beta"])


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
