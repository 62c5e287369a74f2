"""The correctness gate with real kernels: a right one passes, every kind of wrong one is caught."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gate import reference_values

from tilewright import Activation, Artifact, DType, GemmProblem, LaunchPlan, Layout
from tilewright.artifact import Grid, Operand, Pointer, Resources, Scalar, Serves
from tilewright.launch import Kernel, load
from tilewright.launch.host import host_arch
from tuner.devices.base import Tensors
from tuner.devices.host import HostDevice
from tuner.measure import operands
from tuner.measure.correctness import activate, check, forget

DEVICE = HostDevice()
PROBLEM = GemmProblem(12, 20, 33, DType.FLOAT32, Layout.NN, batch=2, has_bias=True, has_c=True)

# What is written for element (i, j) of a D of m x n, given its right value x and the sum of products.
# NOTE: integer operands give integer values, so that `is_whole(x)` tells the two kinds of data apart.
RIGHT = {
    "right": "d[i * n + j] = x;",
    "within_tolerance": "d[i * n + j] = is_whole(x) ? x : x + 1e-5f;",
}
WRONG = {
    # Elements that are missing, doubled or elsewhere.
    "skips_last_row": "if (i < m - 1) d[i * n + j] = x;",
    "skips_first_row": "if (i) d[i * n + j] = x;",
    "skips_last_column": "if (j < n - 1) d[i * n + j] = x;",
    "skips_a_corner": "if (!last) d[i * n + j] = x;",
    "skips_last_batch": "if (z < batch - 1) d[i * n + j] = x;",
    "skips_a_tile_of_8": "if (i < 8 || j < 16) d[i * n + j] = x;",
    "transposed": "d[j * m + i] = x;",
    "shifts_columns": "d[i * n + (j + 1) % n] = x;",
    "shifts_rows": "d[(i + 1) % m * n + j] = x;",
    "swaps_pairs_of_columns": "d[i * n + (j ^ 1)] = x;",
    "repeats_a_batch": "d[i * n + j] = x; if (last) for (long e = 0; e < m * n; ++e) d[e] = d[e - m * n];",
    "repeats_a_row": "d[i * n + j] = x; if (i == m - 1) d[i * n + j] = d[(i - 1) * n + j];",
    "adds_to_what_is_there": "d[i * n + j] += x;",
    "writes_behind": "d[i * n + j] = x; if (last) d[m * n] = 0;",
    "writes_far_behind": "d[i * n + j] = x; if (last) d[m * n + 2000] = 0;",
    "writes_before": "d[i * n + j] = x; if (first) d[-1] = 0;",
    # Products that are missing, doubled or of other elements.
    "short_k": "d[i * n + j] = x - alpha * a[i * k + k - 1] * b[(k - 1) * n + j];",
    "late_k": "d[i * n + j] = x - alpha * a[i * k] * b[j];",
    "one_product_twice": "d[i * n + j] = x + alpha * a[i * k + 7] * b[7 * n + j];",
    "no_k_beyond_32": "for (long l = 32; l < k; ++l) sum -= a[i * k + l] * b[l * n + j];"
    " d[i * n + j] = alpha * sum + y;",
    "wrong_pair_of_k": "d[i * n + j] = x + alpha * a[i * k] * (b[n + j] - b[j]);",
    "row_of_a_clamped": "const long p = i < m - 1 ? i : i - 1; sum = 0;"
    " for (long l = 0; l < k; ++l) sum += a[p * k + l] * b[l * n + j]; d[i * n + j] = alpha * sum + y;",
    "column_of_b_clamped": "const long q = j < n - 1 ? j : j - 1; sum = 0;"
    " for (long l = 0; l < k; ++l) sum += a[i * k + l] * b[l * n + q]; d[i * n + j] = alpha * sum + y;",
    # The epilogue.
    "no_alpha": "d[i * n + j] = sum + y;",
    "alpha_twice": "d[i * n + j] = alpha * alpha * sum + y;",
    "alpha_of_all": "d[i * n + j] = alpha * (sum + y);",
    "no_beta": "d[i * n + j] = alpha * sum + (beta ? c[i * n + j] : 0) + bias[j];",
    "beta_squared": "d[i * n + j] = alpha * sum + (beta ? beta * beta * c[i * n + j] : 0) + bias[j];",
    "beta_of_bias": "d[i * n + j] = alpha * sum + (beta ? beta * (c[i * n + j] + bias[j]) : bias[j]);",
    "beta_for_alpha": "d[i * n + j] = beta ? beta * sum + alpha * c[i * n + j] + bias[j] : x;",
    "no_c": "d[i * n + j] = alpha * sum + bias[j];",
    "c_of_next_row": "d[i * n + j] = x + (beta ? beta * (c[(i + 1) % m * n + j] - c[i * n + j]) : 0);",
    "c_of_first_batch": "d[i * n + j] = x + (beta ? beta * (c[i * n + j - z * m * n] - c[i * n + j]) : 0);",
    "nan_of_unread_c": "d[i * n + j] = alpha * sum + beta * c[i * n + j] + bias[j];",
    "no_bias": "d[i * n + j] = x - bias[j];",
    "bias_twice": "d[i * n + j] = x + bias[j];",
    "bias_of_row": "d[i * n + j] = x - bias[j] + bias[i];",
    "bias_of_next_column": "d[i * n + j] = x - bias[j] + bias[(j + 1) % n];",
    "activated": "d[i * n + j] = x > 0 ? x : 0;",
    "absolute": "d[i * n + j] = fabsf(x);",
    "clamped": "d[i * n + j] = x < 9 ? x : 9;",
    # Rounding.
    "one_ulp": "d[i * n + j] = i == 3 && j == 5 ? nextafterf(x, 1e9f) : x;",
    "beyond_tolerance": "d[i * n + j] = is_whole(x) ? x : x + 6e-5f;",
    "rounds_to_12_bits": "d[i * n + j] = rounded(x, 12);",
    "rounds_operands": "sum = 0; for (long l = 0; l < k; ++l)"
    " sum += rounded(a[i * k + l], 11) * rounded(b[l * n + j], 11); d[i * n + j] = alpha * sum + y;",
    "rounds_the_sum": "sum = 0; for (long l = 0; l < k; ++l)"
    " sum = rounded(sum + a[i * k + l] * b[l * n + j], 11); d[i * n + j] = alpha * sum + y;",
    "rounds_c": "d[i * n + j] = x + (beta ? beta * (rounded(c[i * n + j], 8) - c[i * n + j]) : 0);",
    "one_element_nan": "d[i * n + j] = i == 3 && j == 5 ? NAN : x;",
    "infinite": "d[i * n + j] = x / 0.0f;",
    # What a launch leaves to the next, and what it finds.
    "wrong_every_other_launch": "static long runs; runs += first; d[i * n + j] = x + (runs % 2 == 0);",
    "clears_d_before_it_reads_c": "if (first) for (long e = 0; e < batch * m * n; ++e) d[e] = 0;"
    " d[i * n + j] = alpha * sum + (beta ? beta * c[i * n + j] : 0) + bias[j];",
}
STARTS = {
    "skips_last_row": "integer data: 40 of 480 elements of D are NaN or were never written",
    "skips_last_batch": "integer data: 240 of 480 elements of D are NaN or were never written",
    "one_ulp": "integer data: 2 of 480 elements are off, the worst by ",
    "beyond_tolerance": "normal data: ",
    "one_element_nan": "integer data: 2 of 480 elements of D are NaN or were never written",
    "adds_to_what_is_there": "integer data: 480 of 480 elements of D are NaN or were never written",
    "writes_behind": "integer data: wrote outside D",
    "writes_before": "integer data: wrote outside D",
    "no_alpha": "normal data: ",
    "no_beta": "normal data: ",
    "rounds_operands": "normal data: ",
    "clears_d_before_it_reads_c": "normal data, D in the memory of C: ",
    "nan_of_unread_c": "integer data, beta = 0 and C of NaN: 480 of 480 elements of D are NaN",
}
_PROLOGUE = """
#include <math.h>
static int is_whole(float x) { return x == floorf(x); }
static float rounded(float x, int bits)
{
    int e;
    const float f = frexpf(x, &e);
    return ldexpf(rintf(ldexpf(f, bits)), e - bits);
}
"""
_KERNEL = """
void %s(const float *a, const float *b, const float *c, float *d, const float *bias, long m, long n, long k,
        long batch, float alpha, float beta)
{
    for (long z = 0; z < batch; ++z, a += m * k, b += k * n, c += m * n, d += m * n)
        for (long i = 0; i < m; ++i)
            for (long j = 0; j < n; ++j) {
                const int first = z == 0 && i + j == 0, last = z == batch - 1 && i == m - 1 && j == n - 1;
                float sum = 0;
                for (long l = 0; l < k; ++l) sum += a[i * k + l] * b[l * n + j];
                const float y = (beta ? beta * c[i * n + j] : 0) + bias[j], x = alpha * sum + y;
                %s
            }
}
"""


@functools.cache
def library() -> bytes:
    """All kernels in one shared library."""
    source = _PROLOGUE + "".join(_KERNEL % pair for pair in (RIGHT | WRONG).items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        command = ["cc", "-O1", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), "-lm"]
        subprocess.run(command, input=source.encode(), check=True)
        return path.read_bytes()


@contextmanager
def loaded(name: str, problem: GemmProblem = PROBLEM) -> Iterator[Kernel]:
    pointers: tuple[Operand, ...] = ("a", "b", "c", "d", "bias")
    sizes = ("m", "n", "k", "batch")
    plan = LaunchPlan(
        format="elf",
        target=host_arch(),
        entry=name,
        block=(1, 1, 1),
        grid=Grid(problem.m, problem.n),
        args=(
            *(Pointer(operand) for operand in pointers),
            *(Scalar(size, "int64") for size in sizes),
            Scalar("alpha", "float32"),
            Scalar("beta", "float32"),
        ),
        serves=Serves.of(problem),
    )
    kernel = load(Artifact(plan, Resources(), "0" * 64, "cc", library()))
    try:
        yield kernel
    finally:
        kernel.close()


def verdict(name: str) -> str | None:
    with loaded(name) as kernel:
        return check(DEVICE, kernel, PROBLEM)


@pytest.fixture(params=[1, 100, 2**25])
def _slices(request, monkeypatch) -> Iterator[None]:
    """D is compared row by row, some rows at a time, or whole."""
    monkeypatch.setattr(operands, "_SLICE", request.param)
    monkeypatch.setattr(operands, "_FEWEST_ROWS", 1)
    forget()
    yield
    forget()


@pytest.mark.usefixtures("_slices")
@pytest.mark.parametrize("name", RIGHT)
def test_right_results_pass(name: str) -> None:
    assert verdict(name) is None


@pytest.mark.usefixtures("_slices")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_caught(name: str) -> None:
    reason = verdict(name)
    assert reason is not None
    assert reason.startswith(STARTS.get(name, ("integer data: ", "normal data: ")))


def test_a_problem_that_needs_more_memory_than_the_device_has_is_refused() -> None:
    head = GemmProblem(8192, 128256, 4096, DType.BFLOAT16, Layout.NT)  # references of 8.4 GB each
    assert operands.why_too_large(head, dataclasses.replace(DEVICE.spec, memory_bytes=80 * 10**9)) is None
    reason = operands.why_too_large(head, dataclasses.replace(DEVICE.spec, memory_bytes=40 * 10**9))
    assert reason is not None
    assert "the device has 40000000000" in reason


def test_a_verdict_does_not_depend_on_the_one_before() -> None:
    """D is poisoned anew each time: rows that a right kernel wrote do not help the next one."""
    assert verdict("right") is None
    assert "never written" in (verdict("skips_last_row") or "")
    assert verdict("right") is None


def loops(problem: GemmProblem, tensors: Tensors) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """D by its definition, element by element."""
    layout = problem.layout
    d = np.zeros((problem.batch, problem.m, problem.n))
    for z, i, j in itertools.product(range(problem.batch), range(problem.m), range(problem.n)):
        for p in range(problem.k):
            x = tensors.a[z, p, i] if layout.a_transposed else tensors.a[z, i, p]
            y = tensors.b[z, j, p] if layout.b_transposed else tensors.b[z, p, j]
            d[z, i, j] += float(x) * float(y)
        d[z, i, j] = tensors.alpha * d[z, i, j] + tensors.beta * tensors.c[z, i, j] + tensors.bias[j]
    return d


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layout", Layout)
def test_the_reference_is_the_definition(layout: Layout, batch: int) -> None:
    problem = GemmProblem(3, 4, 5, DType.FLOAT64, layout, batch=batch, has_bias=True, has_c=True)
    random = np.random.default_rng(1)
    tensors = Tensors(
        a=random.standard_normal((batch, *problem.a_shape)),
        b=random.standard_normal((batch, *problem.b_shape)),
        d=np.zeros((batch, 3, 4)),
        c=random.standard_normal((batch, 3, 4)),
        bias=random.standard_normal(4),
        alpha=0.75,
        beta=-0.5,
    )
    expected = loops(problem, tensors)
    np.testing.assert_allclose(reference_values(DEVICE, problem, tensors), expected, rtol=1e-13)
    relu = dataclasses.replace(problem, activation=Activation.RELU)
    np.testing.assert_allclose(
        reference_values(DEVICE, relu, tensors), np.where(expected > 0, expected, 0), rtol=1e-13
    )


def test_activations_by_hand() -> None:
    x = np.array([-3.0, 0.0, 1.0])
    assert activate(np, x, Activation.NONE).tolist() == [-3.0, 0.0, 1.0]
    assert activate(np, x, Activation.RELU).tolist() == [0.0, 0.0, 1.0]
    # gelu(1) = (1 + tanh(0.79788 * 1.044715)) / 2 = (1 + tanh(0.83356)) / 2 = 0.84119; gelu(-3) = -0.00364.
    gelu = activate(np, x, Activation.GELU)
    np.testing.assert_allclose(gelu, [-0.003637, 0.0, 0.841192], atol=1e-6)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_the_reference_reads_every_storage_type(dtype: DType) -> None:
    """16 products of ones."""
    problem = GemmProblem(8, 8, 16, dtype=dtype)
    a = np.ones((1, 8, 16), dtype=np.uint16 if dtype is DType.BFLOAT16 else dtype.value)
    if dtype is DType.BFLOAT16:
        a[:] = 0x3F80  # the bits of 1
    values = reference_values(DEVICE, problem, Tensors(a=a, b=a, d=a))
    assert (values == 16.0).all()
