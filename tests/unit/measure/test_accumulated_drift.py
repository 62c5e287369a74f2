"""The error that the gate allows tensor cores, which truncate each time that they add products to a sum."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tilewright import GemmProblem
from tuner.measure.correctness import _sum_error

ELEMENTS = 4000
STEPS = (4, 8, 16)  # products that are added at once


def truncated(values: np.ndarray) -> np.ndarray:
    """The float32 values next to float64 ones, towards zero."""
    near = values.astype(np.float32)
    return np.where(np.abs(near.astype(float)) > np.abs(values), np.nextafter(near, np.float32(0)), near)


@functools.cache
def drifts(k: int) -> dict[int, float]:
    """The largest errors of totals of k products of N(0, 1) values that are truncated after each step."""
    random = np.random.default_rng(0)
    running, exact = {step: np.zeros(ELEMENTS, np.float32) for step in STEPS}, np.zeros(ELEMENTS)
    for _ in range(k // max(STEPS)):
        left, right = random.standard_normal((2, max(STEPS), ELEMENTS))
        products = left * right
        exact += products.sum(axis=0)
        for step in STEPS:
            for part in products.reshape(-1, step, ELEMENTS):
                running[step] = truncated(running[step] + part.sum(axis=0))
    return {step: float(np.abs(running[step] - exact).max()) for step in STEPS}


@pytest.mark.parametrize("k", [1024, pytest.param(28672, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("dtype", "step"), [("float16", 8), ("float16", 16), ("tfloat32", 4), ("tfloat32", 8)]
)
def test_products_that_drift_as_those_of_tensor_cores_are_right(k: int, dtype: str, step: int) -> None:
    """With k = 28,672 right tfloat32 kernels were taken for wrong."""
    found, allowed = drifts(k)[step], _sum_error(GemmProblem(64, 64, k, dtype))
    assert found < allowed < 20 * found
