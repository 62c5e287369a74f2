"""Numbers to storage and back, bfloat16 above all."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import DType
from tuner.measure.encoding import decode, encode, storage_type


def bits(*values: float) -> list[int]:
    return [int(x) for x in encode(np, np.array(values, dtype=np.float32), DType.BFLOAT16)]


def test_storage_types() -> None:
    floats = ["float16", "uint16", "float32", "float64", "float32", "uint8", "uint8"]
    assert [storage_type(dtype) for dtype in DType] == [*floats, "int8", *["uint8"] * 5, "int32"]


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


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.packing == 1])
def test_shape_and_order_survive(dtype: DType) -> None:
    # Both signs where there are two, and small enough to be exact in every type.
    values = np.arange(24, dtype=np.float64).reshape(2, 3, 4) // 3
    values = values if dtype is DType.UINT8 else values - 4
    turned: Any = values.swapaxes(-1, -2)
    for array in (values, turned, values[:, ::2]):
        assert (decode(encode(np, array, dtype), dtype) == array).all()


@pytest.mark.parametrize("dtype", DType)
def test_decoded_types(dtype: DType) -> None:
    decoded = decode(encode(np, np.ones(8), dtype), dtype)
    assert decoded.dtype == (np.float64 if dtype in (DType.FLOAT64, DType.INT32) else np.float32)


def test_float16_rounds_to_nearest_even() -> None:
    stored = encode(np, np.array([2049.0, 2051.0]), DType.FLOAT16)
    assert stored.tolist() == [2048.0, 2052.0]


FLOAT8 = {DType.FLOAT8_E4M3FN: ml_dtypes.float8_e4m3fn, DType.FLOAT8_E5M2: ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8_decodes_like_ml_dtypes(dtype: DType) -> None:
    every = np.arange(256).astype(np.uint8)
    expected = every.view(FLOAT8[dtype]).astype(np.float32)
    assert np.array_equal(decode(every, dtype), expected, equal_nan=True)
    numbers = ~np.isnan(expected)
    assert (encode(np, expected, dtype)[numbers] == every[numbers]).all()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_rounds_like_ml_dtypes(dtype: DType) -> None:
    random = np.random.default_rng(0)
    spread = random.standard_normal(100_000) * 10.0 ** random.uniform(-7, 6, 100_000)
    edges = [0.0, -0.0, 448, 464, 464.01, 480, 57344, 61439.9, 61440, -61440, 2.0**-10, 2.0**-17, math.inf]
    values = np.concatenate([spread, edges]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(FLOAT8[dtype])
    ours, numbers = encode(np, values, dtype), ~np.isnan(expected.astype(np.float32))
    assert (ours[numbers] == expected.view(np.uint8)[numbers]).all()
    assert np.isnan(decode(ours[~numbers], dtype)).all()
    assert np.isnan(decode(encode(np, np.array([math.nan], np.float32), dtype), dtype)).all()


def test_tfloat32_keeps_ten_bits() -> None:
    # One step above 1 is 2^-10; half a step goes to the even neighbour.
    values = np.array([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-11 + 2**-20)], np.float32)
    assert encode(np, values, DType.TFLOAT32).tolist() == [1 + 2**-10, 1.0, 1 + 2**-9, -(1 + 2**-10)]
    random = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    stored = encode(np, random, DType.TFLOAT32)
    assert not (stored.view(np.uint32) & 0x1FFF).any()
    assert (np.abs(stored - random) <= 2**-11 * np.abs(random)).all()


def test_integers_round_and_saturate() -> None:
    values = np.array([-1e9, -128.5, -0.5, 1.5, 2.5, 127.4, 300.0])
    assert encode(np, values, DType.INT8).tolist() == [-128, -128, 0, 2, 2, 127, 127]
    assert encode(np, values, DType.UINT8).tolist() == [0, 0, 0, 2, 2, 127, 255]
    assert encode(np, np.array([-3e9, 2**31 - 1.0]), DType.INT32).tolist() == [-(2**31), 2**31 - 1]
