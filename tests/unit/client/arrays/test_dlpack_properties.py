"""Arrays of other libraries, by stand-ins: the service gets their values, or the error says what to give."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from array_samples import TYPES, Piece, pieces, scalars, shapes, tuned
from dlpack_samples import (
    NOT_SENT,
    NUMPY_LACKS,
    SENT,
    Earlier,
    LikeJax,
    LikeTorch,
    Produced,
    capsule_of,
    check_foreign_product,
    check_sent,
    torch_alike,
    why_not_sent,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tilewright.errors import InvalidProblem
from tilewright.http.tensors import from_array, host_array, to_array
from tilewright.matmul.matmul import LocalMatmul

MATMUL = LocalMatmul(tuned)
SHAPES = st.lists(st.sampled_from((0, 1, 2, 5)), min_size=1, max_size=3).map(tuple)
JAX_TYPES = (*SENT, *SENT, *NUMPY_LACKS, *NOT_SENT)
TORCH_TYPES = (*SENT, *SENT, "bfloat16", *NOT_SENT)  # capsule_of makes none of the narrower types
INSTEAD_OF_TORCH = "a.detach().cpu()"


@st.composite
def stored(draw: DrawFn, dtypes: tuple[str, ...]) -> Any:
    """A view of an array of any type, transposed or not, with or without gaps."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from(dtypes))
    gaps = [draw(st.sampled_from((1, 1, 2))) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    whole = [shape[axis] * gaps[axis] for axis in order]
    values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 4, whole)
    turned = values.astype(dtype).transpose(np.argsort(order))
    return turned[tuple(slice(None, None, gap) for gap in gaps)]


@st.composite
def like_jax(draw: DrawFn) -> Produced:
    values, deleted = draw(stored(JAX_TYPES)), not draw(st.integers(0, 5))
    instead = "numpy.asarray(a), outside of jax.jit and jax.grad"
    refused = instead if deleted else why_not_sent(values.dtype.name, instead)
    return Produced(LikeJax(values, deleted, draw(st.booleans())), values.copy(), refused)


@st.composite
def like_torch(draw: DrawFn) -> Produced:
    values = draw(stored(TORCH_TYPES))
    dtype = values.dtype.name
    grad, conj = (not draw(st.integers(0, 5)) for _ in range(2))
    neg = dtype != "bool" and draw(st.booleans())
    tensor = LikeTorch(values, grad, conj, neg)
    instead = INSTEAD_OF_TORCH
    instead += ".view(torch.int16).numpy().view(ml_dtypes.bfloat16)" if dtype == "bfloat16" else ""
    refused = instead if grad or conj else why_not_sent(dtype, instead)
    return Produced(tensor, -values if neg else values.copy(), refused)


@settings(max_examples=200, deadline=None)
@given(produced=like_jax())
def test_arrays_like_those_of_jax_are_sent(produced: Produced) -> None:
    check_sent(produced)


@settings(max_examples=200, deadline=None)
@given(produced=like_torch())
def test_tensors_like_those_of_torch_are_sent(produced: Produced) -> None:
    with torch_alike():
        check_sent(produced)


@settings(max_examples=100, deadline=None)
@given(values=stored((*SENT, *NOT_SENT)))
def test_producers_of_an_earlier_dlpack_are_sent(values: Any) -> None:
    check_sent(Produced(Earlier(values), values.copy(), why_not_sent(values.dtype.name, "")))


def drawn_pieces() -> st.SearchStrategy[Piece]:
    return SHAPES.flatmap(lambda shape: pieces(shape, (*TYPES, "=i1", "<f2", ">f2")))


@settings(max_examples=200, deadline=None)
@given(piece=drawn_pieces(), by_dlpack=st.booleans())
def test_arrays_of_numpy_are_sent_by_themselves_and_by_dlpack(piece: Piece, by_dlpack: bool) -> None:
    """DLPack has no byte order, strides in whole elements and, before version 1, no read-only memory."""
    array, before = piece.array, piece.memory.copy()
    producer = Earlier(array) if by_dlpack else array
    masked = isinstance(array, np.ma.MaskedArray)
    bytes_apart = any(step % array.itemsize for step in array.strides)
    lost = by_dlpack and (not array.dtype.isnative or not array.flags.writeable or bytes_apart)
    refused = array.dtype.name in ("bool", "int64", "complex64") or (masked and not by_dlpack)
    try:
        got = to_array(from_array("a", producer))
    except InvalidProblem as error:
        told = str(error)
        assert refused or lost
        assert "; use " in told or "; give " in told
    else:
        assert not refused
        want = np.ma.getdata(array)
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    assert (piece.memory == before).all()


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_the_stand_ins_export_bfloat16_as_dlpack_writes_it(max_version: tuple[int, int] | None) -> None:
    """NumPy knows the code of the type, 4, and refuses it; other readers take it."""
    ones = np.ones((2, 3), ml_dtypes.bfloat16)
    assert "dltensor" in repr(capsule_of(ones, max_version))
    with pytest.raises((BufferError, RuntimeError), match="dtype"):
        np.from_dlpack(LikeJax(ones))


@pytest.mark.parametrize("dtype", NUMPY_LACKS)
def test_what_the_message_for_jax_says_to_give_is_sent(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    array = LikeJax(values)
    with pytest.raises(InvalidProblem, match=r"give numpy\.asarray\(b\), outside of jax\.jit and jax\.grad$"):
        host_array("b", array)
    assert to_array(from_array("b", np.asarray(array))).tolist() == values.tolist()


KINDS = st.sets(st.sampled_from(("a", "b", "out", "bias")), min_size=1, max_size=2)


@st.composite
def operands(draw: DrawFn) -> dict[str, Any]:
    """Operands of NumPy of one product, of one type."""
    dtype, seed = draw(st.sampled_from(("float32", "float64"))), draw(st.integers(0, 9))
    random = np.random.default_rng(seed)
    return {
        name: None if shape is None else random.integers(-3, 4, shape).astype(dtype)
        for name, shape in draw(shapes()).items()
    }


@settings(max_examples=200, deadline=None)
@given(arrays=operands(), kinds=KINDS, factors=scalars())
def test_products_with_arrays_like_those_of_jax(
    arrays: dict[str, Any], kinds: set[str], factors: dict[str, Any]
) -> None:
    check_foreign_product(MATMUL, arrays, LikeJax, kinds, factors)


def test_the_answer_to_an_array_of_jax_on_the_right_is_its_own() -> None:
    a, b = np.ones((2, 3), "f4"), LikeJax(np.ones((3, 4), "f4"))
    assert type(MATMUL(a, b)) is LikeJax
    assert type(MATMUL(a, b, alpha=2.0)) is np.ndarray
