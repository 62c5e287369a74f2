"""``matmul`` gives of any arrays what NumPy gives for copies, or an error, and writes to ``out`` alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_samples import (
    FLOATS,
    TYPES,
    Piece,
    check_memory,
    fit_together,
    formula,
    pieces,
    scalars,
    shapes,
    tuned,
    values_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tilewright.errors import InvalidProblem
from tilewright.matmul.matmul import LocalMatmul

REFUSED = (InvalidProblem, ValueError, TypeError)  # ours, and NumPy's own
MATMUL = LocalMatmul(tuned)


@st.composite
def calls(draw: DrawFn) -> tuple[dict[str, Piece | None], dict[str, Any]]:
    """Operands and scalars of one product; most fit together."""
    types = draw(st.sampled_from((TYPES, ("=f4",), ("=f4",), ("=f8",))))
    given_shapes = draw(shapes())
    arrays = {
        name: None if shape is None else draw(pieces(shape, types)) for name, shape in given_shapes.items()
    }
    return arrays, draw(scalars())


def must_run(arrays: dict[str, Piece | None], factors: dict[str, Any]) -> bool:
    """Whether there is no reason to refuse a product: plain arrays of one type, and shapes that fit."""
    found = {name: piece.array for name, piece in arrays.items() if piece}
    types = {array.dtype.newbyteorder("=") for array in found.values()}
    plain = all(type(array) is np.ndarray for array in found.values()) and len(types) == 1
    writable = "out" not in found or found["out"].flags.writeable
    fits = fit_together({name: piece and piece.array.shape for name, piece in arrays.items()}, factors)
    return plain and writable and fits and types <= {np.dtype(one) for one in FLOATS}


@settings(max_examples=300, deadline=None)
@given(call=calls())
def test_any_arrays(call: tuple[dict[str, Piece | None], dict[str, Any]]) -> None:
    arrays, factors = call
    given_arrays = {name: piece and piece.array for name, piece in arrays.items()}
    before = {name: piece and piece.memory.copy() for name, piece in arrays.items()}
    copies = {name: None if array is None else values_of(array) for name, array in given_arrays.items()}
    got, out = None, arrays["out"]
    try:
        got = MATMUL(*given_arrays.values(), **factors)
    except REFUSED:
        if must_run(arrays, factors):
            raise
    for name, piece in arrays.items():
        fixed = name != "out" or got is None or not piece or not piece.array.flags.writeable
        assert piece is None or not fixed or (piece.memory == before[name]).all(), f"{name} was written to"
    if got is None:
        return
    try:
        want = formula(copies["a"], copies["b"], copies["out"], copies["bias"], factors)
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
