"""Numbers to storage and back, bfloat16 above all."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import DType
from tuner.arrays import decode, encode, storage_type


def bits(*values: float) -> list[int]:
    return [int(x) for x in encode(np, np.array(values, dtype=np.float32), DType.BFLOAT16)]


def test_storage_types() -> None:
    assert [storage_type(dtype) for dtype in DType] == ["float16", "uint16", "float32", "float64"]


def test_bfloat16_by_hand() -> None:
    # 1 is 0x3F80; one step is 2^-7. A half step goes to the even neighbour, anything more goes up.
    assert bits(1.0, -2.0, 1.0 + 2**-7) == [0x3F80, 0xC000, 0x3F81]
    assert bits(1.0 + 2**-8, 1.0 + 3 * 2**-8) == [0x3F80, 0x3F82]
    assert bits(1.0 + 2**-8 + 2**-20, 1.0 + 2**-8 - 2**-20) == [0x3F81, 0x3F80]
    assert bits(0.0, -0.0, math.inf, -math.inf) == [0x0000, 0x8000, 0x7F80, 0xFF80]


def test_bfloat16_overflows_to_infinity() -> None:
    # The largest is 0x7F7F = (2 - 2^-7) * 2^127; half a step above it rounds away to infinity.
    largest = (2 - 2**-7) * 2.0**127
    assert bits(largest, largest + 2.0**118, largest + 2.0**119) == [0x7F7F, 0x7F7F, 0x7F80]


def test_nan_stays_nan() -> None:
    payloads = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    assert np.isnan(decode(encode(np, payloads, DType.BFLOAT16), DType.BFLOAT16)).all()


def test_bfloat16_agrees_with_ml_dtypes() -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    values = patterns.view(np.float32)
    values = values[~np.isnan(values)]
    expected = values.astype(ml_dtypes.bfloat16)
    stored = encode(np, values, DType.BFLOAT16)
    assert (stored == expected.view(np.uint16)).all()
    assert (decode(stored, DType.BFLOAT16) == expected.astype(np.float32)).all()


def test_every_bfloat16_survives() -> None:
    every = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    again = encode(np, decode(every, DType.BFLOAT16), DType.BFLOAT16)
    finite = every & 0x7FFF <= 0x7F80
    assert (again[finite] == every[finite]).all()


@pytest.mark.parametrize("dtype", DType)
def test_shape_and_order_survive(dtype: DType) -> None:
    values = np.arange(-12, 12, dtype=np.float64).reshape(2, 3, 4)
    turned: Any = values.swapaxes(-1, -2)
    for array in (values, turned, values[:, ::2]):
        assert (decode(encode(np, array, dtype), dtype) == array).all()


@pytest.mark.parametrize("dtype", DType)
def test_decoded_types(dtype: DType) -> None:
    decoded = decode(encode(np, np.ones(3), dtype), dtype)
    assert decoded.dtype == (np.float64 if dtype is DType.FLOAT64 else np.float32)


def test_float16_rounds_to_nearest_even() -> None:
    stored = encode(np, np.array([2049.0, 2051.0]), DType.FLOAT16)
    assert stored.tolist() == [2048.0, 2052.0]
