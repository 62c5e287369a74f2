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

from tilewright import Activation, Artifact, DType, GemmProblem, LaunchPlan, Layout
from tilewright.artifact import Grid, Operand, Pointer, Resources, Scalar, Serves
from tilewright.launch import Kernel, load
from tilewright.launch.host import host_arch
from tuner.devices.base import Tensors
from tuner.devices.host import HostDevice
from tuner.measure.correctness import activate, check, reference_values

DEVICE = HostDevice()
PROBLEM = GemmProblem(12, 20, 33, DType.FLOAT32, Layout.NN, batch=2, has_bias=True, has_c=True)

# What is written for element (i, j) of a D of m x n, given its right value x and the sum of products.
# NOTE: integer operands give integer values, so that `is_whole(x)` tells the two runs of the check apart.
KERNELS = {
    "right": "d[i * n + j] = x;",
    "skips_last_row": "if (i < m - 1) d[i * n + j] = x;",
    "skips_last_batch": "if (z < batch - 1) d[i * n + j] = x;",
    "one_ulp": "d[i * n + j] = i == 3 && j == 5 ? nextafterf(x, 1e9f) : x;",
    "beyond_tolerance": "d[i * n + j] = is_whole(x) ? x : x + 6e-5f;",
    "within_tolerance": "d[i * n + j] = is_whole(x) ? x : x + 1e-5f;",
    "one_element_nan": "d[i * n + j] = i == 3 && j == 5 ? NAN : x;",
    "infinite": "d[i * n + j] = x / 0.0f;",
    "transposed": "d[j * m + i] = x;",
    "adds_to_what_is_there": "d[i * n + j] += x;",
    "writes_behind": "d[i * n + j] = x; if (last) d[m * n] = 0;",
    "writes_before": "d[i * n + j] = x; if (first) d[-1] = 0;",
    "no_alpha": "d[i * n + j] = sum + beta * c[i * n + j] + bias[j];",
    "no_beta": "d[i * n + j] = alpha * sum + c[i * n + j] + bias[j];",
    "no_bias": "d[i * n + j] = alpha * sum + beta * c[i * n + j];",
    "bias_of_row": "d[i * n + j] = x - bias[j] + bias[i];",
    "short_k": "d[i * n + j] = x - alpha * a[i * k + k - 1] * b[(k - 1) * n + j];",
    "repeats_a_batch": "d[i * n + j] = x; if (last) for (long e = 0; e < m * n; ++e) d[e] = d[e - m * n];",
}
MESSAGES = {
    "skips_last_row": "integer data: 40 of 480 elements of D are NaN or were never written",
    "skips_last_batch": "integer data: 240 of 480 elements of D are NaN or were never written",
    "one_ulp": "integer data: 2 of 480 elements are off, the worst by ",
    "beyond_tolerance": "normal data: ",
    "one_element_nan": "integer data: 2 of 480 elements of D are NaN or were never written",
    "infinite": "integer data: ",
    "transposed": "integer data: ",
    "adds_to_what_is_there": "integer data: 480 of 480 elements of D are NaN or were never written",
    "writes_behind": "integer data: wrote outside D",
    "writes_before": "integer data: wrote outside D",
    "no_alpha": "normal data: ",
    "no_beta": "normal data: ",
    "no_bias": "integer data: ",
    "bias_of_row": "integer data: ",
    "short_k": "integer data: ",
    "repeats_a_batch": "integer data: ",
}
_PROLOGUE = """
#include <math.h>
static int is_whole(float x) { return x == floorf(x); }
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
                const float x = alpha * sum + beta * c[i * n + j] + bias[j];
                %s
            }
}
"""


@functools.cache
def library() -> bytes:
    """All kernels in one shared library."""
    source = _PROLOGUE + "".join(_KERNEL % pair for pair in KERNELS.items())
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


@pytest.mark.parametrize("name", ["right", "within_tolerance"])
def test_right_results_pass(name: str) -> None:
    assert verdict(name) is None


@pytest.mark.parametrize("name", MESSAGES)
def test_wrong_results_are_caught(name: str) -> None:
    assert (verdict(name) or "").startswith(MESSAGES[name])


def test_every_wrong_kernel_is_named() -> None:
    assert set(KERNELS) - set(MESSAGES) == {"right", "within_tolerance"}


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


@pytest.mark.parametrize("layout", Layout)
def test_the_reference_is_the_definition(layout: Layout) -> None:
    problem = GemmProblem(3, 4, 5, DType.FLOAT64, layout, batch=2, has_bias=True, has_c=True)
    random = np.random.default_rng(1)
    tensors = Tensors(
        a=random.standard_normal((2, *problem.a_shape)),
        b=random.standard_normal((2, *problem.b_shape)),
        d=np.zeros((2, 3, 4)),
        c=random.standard_normal((2, 3, 4)),
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
