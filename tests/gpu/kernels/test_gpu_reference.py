"""Every reference kernel is right, the ladder runs, and the bias that document 004 describes."""

from __future__ import annotations

import dataclasses

import gate
import pytest

from kernels.compiler.build import build
from kernels.reference import REFERENCE_KERNELS, ReferenceKernel
from kernels.registry import FAMILIES
from tilewright import GemmProblem
from tilewright.launch import load

BY_NAME = {reference.name: reference for reference in REFERENCE_KERNELS}
ODD = (129, 257, 65)
ODD_ROWS = (129, 272, 144)  # rows of whole 16-byte chunks for types of 8 bits and more
ALIGNED = (384, 256, 512)


def resized(reference: ReferenceKernel, size: tuple[int, int, int]) -> GemmProblem:
    """At another size, k rounded up to what fills the bytes of a packed type."""
    m, n, k = size
    return dataclasses.replace(reference.problem, m=m, n=n, k=k + -k % reference.problem.dtype.packing)


def wrong(device, reference: ReferenceKernel, problem: GemmProblem) -> str | None:
    return gate.wrong(device, FAMILIES[reference.family], reference.config, problem)


@pytest.mark.parametrize("reference", REFERENCE_KERNELS, ids=lambda reference: reference.name)
def test_every_reference_kernel_is_right(device, reference) -> None:
    family = FAMILIES[reference.family]
    reason = family.why_invalid(reference.config, resized(reference, ALIGNED), device.spec)
    if reason and device.spec.arch != "sm_90":
        pytest.skip(reason)
    assert reason is None
    sizes = [ALIGNED, ODD_ROWS]
    if family.why_invalid(reference.config, resized(reference, ODD), device.spec) is None:
        sizes.append(ODD)
    for size in sizes:
        assert wrong(device, reference, resized(reference, size)) is None, size


@pytest.mark.parametrize("name", ["002-mma-16x8x16", "002-mma-16x8x16-ldmatrix"])
def test_one_mma_at_its_own_shape(device, name) -> None:
    assert wrong(device, BY_NAME[name], BY_NAME[name].problem) is None


def test_the_ladder_runs(device) -> None:
    """One short race with cuBLAS, through everything but the big shapes."""
    from benchmarks.ladder.race import climb
    from benchmarks.ladder.rows import rows

    chosen = [BY_NAME["002-mma-16x8x16"], BY_NAME["002-mma-16x8x16-ldmatrix"]]
    measurements = climb(device, chosen, rounds=3)
    assert [measurement.failure for measurement in measurements] == [""] * 4
    found = rows(measurements)
    assert [row.kernel for row in found] == [
        "002-cublas-mma-16x8x16", "002-cublas-mma-16x8x16-best", *(reference.name for reference in chosen),
    ]  # fmt: skip
    assert all(row.tflops for row in found)
    assert all(row.registers for row in found[2:])


def relative_error(device, reference: ReferenceKernel):
    """(computed - exact) / exact of every element for U[0, 1) operands."""
    from gate import reference_values

    from tuner.devices.base import Tensors
    from tuner.measure.operands import bind

    xp, problem = device.xp, resized(reference, (256, 256, 4096))
    random = xp.random.default_rng(4)

    def draw(shape):
        return random.random((1, *shape), dtype="float32").astype("float16")

    d = xp.zeros((1, problem.m, problem.n), "float32")
    tensors = Tensors(draw(problem.a_shape), draw(problem.b_shape), d)
    kernel = load(build(FAMILIES[reference.family], reference.config, problem, device.spec))
    bound = bind(device, kernel, problem, [tensors])
    device.synchronize()
    bound.launches[0]()
    device.synchronize()
    kernel.close()
    exact = reference_values(device, problem, tensors)
    return (d.astype("float64") - exact) / exact


def test_accumulators_inside_the_mma_come_out_low(device) -> None:
    """Document 004: the chained sum is consistently low by about 1e-5 of the result; adding up outside of the
    mma makes the difference about two orders of magnitude smaller and centres it."""
    chained = relative_error(device, BY_NAME["004-1b-tiling"])
    outside = relative_error(device, BY_NAME["004-1b-outside"])
    bias, rest = float(chained.mean()), float(outside.mean())
    print(f"\nchained {bias:.2e}, {float((chained < 0).mean()):.1%} low; outside {rest:.2e} "  # noqa: T201
          f"+- {float(outside.std()):.1e}, {float((outside < 0).mean()):.1%} low")  # fmt: skip
    assert -1e-4 < bias < -1e-6
    assert float((chained < 0).mean()) > 0.99
    assert abs(rest) < abs(bias) / 30
    assert abs(rest) < float(outside.std())
    assert 0.2 < float((outside < 0).mean()) < 0.8
