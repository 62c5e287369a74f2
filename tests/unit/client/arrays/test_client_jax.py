"""Arrays of JAX on the CPU: a service gets their values, and errors say what to give."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from array_samples import scalars, shapes, tuned
from dlpack_samples import (
    NOT_SENT,
    NUMPY_LACKS,
    SENT,
    LikeJax,
    Produced,
    check_foreign_product,
    check_sent,
    why_not_sent,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tilewright import Client
from tilewright.errors import InvalidProblem
from tilewright.http.tensors import from_array, host_array, to_array
from tilewright.matmul.matmul import LocalMatmul

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

# NOTE: warnings that JAX raises about itself are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:jax.*")
MATMUL = LocalMatmul(tuned)
INSTEAD = "numpy.asarray(a), outside of jax.jit and jax.grad"


@pytest.fixture(autouse=True)
def _wide_types() -> Any:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@st.composite
def produced(draw: DrawFn) -> Produced:
    """An array of any type, transposed or not, alive or deleted."""
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 5)), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from((*SENT, *SENT, *NUMPY_LACKS, *NOT_SENT)))
    values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 4, shape).astype(dtype)
    values = values.T if draw(st.booleans()) else values
    array = jnp.asarray(values)
    if draw(st.integers(0, 5)):
        return Produced(array, values, why_not_sent(dtype, INSTEAD))
    array = array.copy()
    array.delete()
    return Produced(array, values, INSTEAD)


@settings(max_examples=200, deadline=None)
@given(one=produced())
def test_arrays_are_sent(one: Produced) -> None:
    check_sent(one)


def test_an_array_is_sent_from_its_own_memory() -> None:
    array = jnp.ones((2, 3), "float32")
    assert host_array("a", array)[1].ctypes.data == array.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", NUMPY_LACKS)
def test_what_the_message_says_to_give_is_sent(dtype: str) -> None:
    array = jnp.arange(6).reshape(2, 3).astype(dtype)
    with pytest.raises(InvalidProblem, match=r"give numpy\.asarray\(b\)"):
        host_array("b", array)
    assert to_array(from_array("b", np.asarray(array))).tolist() == array.tolist()


def test_a_traced_array_is_refused_in_one_line() -> None:
    def product(a: Any) -> Any:
        with Client("http://127.0.0.1:1") as tw:
            return tw.gemm(a, a)

    for transformed in (jax.jit(product), jax.grad(product), jax.vmap(product)):
        with pytest.raises(InvalidProblem) as caught:
            transformed(jnp.ones((2, 2, 2)))
        assert re.fullmatch("a does not.*; give numpy.*, outside of jax.jit and jax.grad", str(caught.value))


@st.composite
def operands(draw: DrawFn) -> dict[str, Any]:
    dtype, random = (
        draw(st.sampled_from(("float32", "float64"))),
        np.random.default_rng(draw(st.integers(0, 9))),
    )
    return {
        name: None if shape is None else random.integers(-3, 4, shape).astype(dtype)
        for name, shape in draw(shapes()).items()
    }


@settings(max_examples=150, deadline=None)
@given(
    arrays=operands(),
    kinds=st.sets(st.sampled_from(("a", "b", "out", "bias")), min_size=1, max_size=2),
    factors=scalars(),
)
def test_products(arrays: dict[str, Any], kinds: set[str], factors: dict[str, Any]) -> None:
    check_foreign_product(MATMUL, arrays, jnp.asarray, kinds, factors)


def test_the_stand_in_is_like_an_array_of_jax() -> None:
    """So that tests without JAX test what it does."""
    values = np.arange(6, dtype="f4").reshape(2, 3)
    real, stand_in = jnp.asarray(values), LikeJax(values)
    assert type(real).__name__ == type(stand_in).__name__
    assert type(real).__module__.split(".")[0] in ("jax", "jaxlib")
    assert real.__array_priority__ == stand_in.__array_priority__
    assert real.__dlpack_device__() == stand_in.__dlpack_device__()
    for one in (real, stand_in):
        assert not np.from_dlpack(one).flags.writeable
        assert not np.asarray(one).flags.writeable
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(one.astype("bfloat16"))
