"""The error that the gate allows tensor cores, which truncate each time that they add products to a sum."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import GemmProblem
from tuner.measure.correctness import _sum_error

ELEMENTS = 4000


def truncated(values: np.ndarray) -> np.ndarray:
    """The float32 values next to float64 ones, towards zero."""
    near = values.astype(np.float32)
    return np.where(np.abs(near.astype(float)) > np.abs(values), np.nextafter(near, np.float32(0)), near)


def drift(k: int, step: int) -> float:
    """The largest error of totals of k products of N(0, 1) values that are truncated after each step."""
    random = np.random.default_rng(0)
    running, exact = np.zeros(ELEMENTS, np.float32), np.zeros(ELEMENTS)
    for _ in range(k // step):
        left, right = random.standard_normal((2, step, ELEMENTS))
        products = (left * right).sum(axis=0)
        exact += products
        running = truncated(running + products)
    return float(np.abs(running - exact).max())


@pytest.mark.parametrize("k", [1024, 28672])
@pytest.mark.parametrize(
    ("dtype", "step"), [("float16", 8), ("float16", 16), ("tfloat32", 4), ("tfloat32", 8)]
)
def test_products_that_drift_as_those_of_tensor_cores_are_right(k: int, dtype: str, step: int) -> None:
    """With k = 28,672 right tfloat32 kernels were taken for wrong."""
    found, allowed = drift(k, step), _sum_error(GemmProblem(64, 64, k, dtype))
    assert found < allowed < 20 * found
