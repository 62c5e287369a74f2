"""Values, extents and repetitions at which a kernel that is right elsewhere may be wrong."""

from __future__ import annotations

import dataclasses

import gate
import numpy
import pytest
from gpu_samples import WGMMA_WS_BASE

from kernels.registry import FAMILIES
from tilewright import Config, GemmProblem
from tuner.measure.correctness import check
from tuner.measure.encoding import decode, encode
from tuner.measure.operands import bind, make_tensors

EXTREMES = [-numpy.inf, -3.3e38, -1e30, -50.0, -1.0, 0.0, 1.0, 50.0, 1e30, 3.3e38, numpy.inf, numpy.nan]


@pytest.mark.parametrize(
    ("family", "dtype", "knobs"),
    [
        ("simt", "float32", {}),
        ("mma_sync", "bfloat16", {}),
        ("wgmma_ws", "bfloat16", {**WGMMA_WS_BASE, "epilogue": "stmatrix"}),
        ("wgmma_ws", "bfloat16", {**WGMMA_WS_BASE, "epilogue": "overlapped"}),
    ],
    ids=str,
)
def test_gelu_of_extreme_values(hopper, family, dtype, knobs) -> None:
    """A is 0, so the bias alone is activated; expected is the form with tanh, in float64."""
    problem = GemmProblem(512, 512, 128, dtype=dtype, activation="gelu", has_bias=True)
    chosen = FAMILIES[family]
    config = Config.of(family, knobs) if knobs else chosen.heuristic_configs(problem, hopper.spec)[0]
    kernel = gate.built(hopper, chosen, config, problem)
    tensors = make_tensors(hopper, problem, 0, "integer")
    tensors.a[:] = 0
    values = numpy.resize(numpy.array(EXTREMES, numpy.float32), problem.n)
    tensors.bias[:] = encode(hopper.xp, hopper.xp.asarray(values), problem.dtype)
    seen = decode(tensors.bias, problem.dtype).get().astype(numpy.float64)
    bound = bind(hopper, kernel, problem, [tensors])
    hopper.synchronize()
    hopper.once(bound.launches[0])
    got = decode(tensors.d, problem.dtype).get()[0]
    kernel.close()
    with numpy.errstate(invalid="ignore"):
        wanted = 0.5 * seen * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (seen + 0.044715 * seen**3)))
    numpy.testing.assert_allclose(got, numpy.broadcast_to(wanted, got.shape), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_thousand_launches_of_a_cluster_along_k_agree(hopper, layout) -> None:
    """With a k of one step, the second CTA of each pair adds nothing and is the first to be done."""
    problem = GemmProblem(2560, 2304, 8, layout=layout)
    config = Config.of("wgmma_ws", {**WGMMA_WS_BASE, "cluster_k": 2})
    kernel = gate.built(hopper, FAMILIES["wgmma_ws"], config, problem)
    assert check(hopper, kernel, problem) is None
    tensors = make_tensors(hopper, problem, 1, "normal")
    launch = bind(hopper, kernel, problem, [tensors]).launches[0]
    hopper.synchronize()  # the operands are made on another stream than that of the launch
    hopper.once(launch)
    first = tensors.d.copy()
    for number in range(1000):
        tensors.d.fill(0)
        hopper.synchronize()
        hopper.once(launch)
        assert bool((tensors.d == first).all()), f"launch {number} differs"
    kernel.close()


def test_a_cluster_of_eight_serves_a_k_of_one_chunk(hopper) -> None:
    """Seven CTAs of each cluster have no k then."""
    built_for = GemmProblem(4, 2048, 8192, batch=3)
    family = FAMILIES["gemv_tma"]
    base = family.heuristic_configs(GemmProblem(4, 2048, 8192), hopper.spec)[0]
    config = Config.of("gemv_tma", {**dict(base.knobs), "cluster_k": 8, "stages": 2})
    kernel = gate.built(hopper, family, config, built_for)
    for k in (8, 64, 72, 8192):
        assert check(hopper, kernel, dataclasses.replace(built_for, k=k)) is None
    kernel.close()


def test_the_longest_rows_that_a_repack_takes(hopper) -> None:
    """Rows of 2 GiB in float64, the most that fits 32 bits."""
    problem = GemmProblem(1, 1, 2**28 - 1025, dtype="float64", layout="nt")
    family = FAMILIES["mma_sync"]
    base = family.heuristic_configs(GemmProblem(1, 1, 4097, dtype="float64"), hopper.spec)[0]
    config = Config.of("mma_sync", {**dict(base.knobs), "repack": 1})
    assert gate.wrong(hopper, family, config, problem) is None
