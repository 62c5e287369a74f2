"""The error of gelu in float32, by the formula of the sources with the worst errors of its instructions."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from device_samples import HOPPER

from kernels.base.spec import SOURCES
from kernels.compiler.build import compile_spec
from kernels.compiler.cubin import code_sections
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import GemmProblem
from tilewright.schema.problem import Activation, DType
from tuner.measure.correctness import GELU_ERROR, _tolerance, activate

SOURCE = (SOURCES / "common" / "epilogue.cuh").read_text()
LEAST = 2.0**-126  # smaller numbers count as 0


def gelu(x: np.ndarray, ex2_error: float, rcp_error: float) -> np.ndarray:
    """The formula of the sources, with relative errors of both functions."""
    linear, cubic = (
        np.float32(re.search(rf"{name} = ([-.0-9]+)f", SOURCE)[1]) for name in ("linear", "cubic")
    )
    assert "x * rcp_approx(1 + ex2_approx(x * (linear + cubic * x * x)))" in SOURCE

    def rounded(exact: np.ndarray) -> np.ndarray:
        return np.where(exact < LEAST, 0, exact).astype("float32")

    power = rounded(np.exp2((x * (linear + cubic * x * x)).astype("float64")) * (1 + ex2_error))
    return x * rounded(1 / (np.float32(1) + power).astype("float64") * (1 + rcp_error))


@pytest.mark.parametrize("ex2_error", [-(2**-22), 2**-22])
@pytest.mark.parametrize("rcp_error", [-(2**-23), 2**-23])
def test_every_float16_is_within_the_bound(ex2_error: float, rcp_error: float) -> None:
    halves = np.arange(2**16, dtype="uint16").view("float16")
    x = halves[np.isfinite(halves)].astype("float32")
    with np.errstate(over="ignore"):
        found = gelu(x, ex2_error, rcp_error)
    exact = activate(np, x.astype("float64"), Activation.GELU)
    relative, least = GELU_ERROR
    assert (abs(found - exact) <= relative * abs(exact) + least).all()


def test_beyond_float16_it_stays_what_it_is() -> None:
    x = np.array([3e38, -3e38, np.inf], dtype="float32")
    with np.errstate(over="ignore"):
        assert gelu(x, 0, 0).tolist() == [x[0], 0, np.inf]
        assert np.isnan(gelu(np.array([np.nan], dtype="float32"), 0, 0)).all()


def test_the_gate_allows_that_error_and_no_more() -> None:
    plain = GemmProblem(8, 8, 8, dtype=DType.FLOAT32)
    with_gelu = dataclasses.replace(plain, activation=Activation.GELU)
    more = np.subtract(_tolerance(with_gelu), _tolerance(plain))
    np.testing.assert_allclose(more, [2**-24, 2**-20])
    double = dataclasses.replace(with_gelu, dtype=DType.FLOAT64, acc_dtype=None, out_dtype=None)
    assert _tolerance(double).fixed == 8 * 2**-52 * 8
    assert _tolerance(double, launches=2).fixed == 16 * 2**-52 * 8


def test_gelu_is_short() -> None:
    """The code of a tile with bias and C: 82 KB beside 54 KB of relu; tanhf took 163 KB."""
    problem = GemmProblem(4096, 4096, 4096, has_bias=True, has_c=True, activation="gelu")
    config = WGMMA_WS.heuristic_configs(problem, HOPPER)[0]

    def size(activation: str) -> int:
        asked = dataclasses.replace(problem, activation=Activation(activation))
        spec = WGMMA_WS.build_spec(config, asked, HOPPER)
        return sum(map(len, code_sections(compile_spec(spec).binary).values()))

    assert size("gelu") < 1.6 * size("relu")
