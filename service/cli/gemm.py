"""``tilewright gemm``: a random GEMM on the service, checked against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import typer

from service.cli.options import Asked, asks
from service.cli.output import AsJson, Device, Url, connect, device_named, echo, print_json, rate
from tilewright import Client
from tilewright.http.gemm_calls import GemmAnswer
from tilewright.http.tensors import numpy_type
from tilewright.schema.problem import DType, GemmProblem

_SAFETY = 4.0


@asks(more=False)
def gemm(asked: Asked, device: Device = None, url: Url = None, as_json: AsJson = False) -> None:
    """Run a GEMM with random operands on the service and check the result against float64."""
    with connect(url) as client:
        problem = asked.on(device_named(client, device).kind)
        report = checked_gemm(client, problem, device)
    if as_json:
        print_json(report)
    else:
        echo(f"{problem}: {report['kernel_us']:.2f} us, {rate(report['tflops'])}, by {report['ran']}")
        echo(f"largest error {report['error_ratio']:.3f} of what rounding allows: {report['verdict']}")
    if report["verdict"] != "right":
        raise typer.Exit(1)


def checked_gemm(client: Client, problem: GemmProblem, device: str | None = None) -> dict[str, Any]:
    """Run a problem with random operands on the service; ``verdict`` is ``right`` or ``wrong``."""
    random = np.random.default_rng(0)
    a, b = (_draw(random, shape, problem.dtype) for shape in (problem.a_shape, problem.b_shape))
    answer = client.gemm(a, b, layout=problem.layout, dtype=problem.dtype, device=device)
    return _report(problem, a, b, answer)


def _report(problem: GemmProblem, a: Any, b: Any, answer: GemmAnswer) -> dict[str, Any]:
    ratio = _error_ratio(problem, a.astype(np.float64), b.astype(np.float64), answer.d.astype(np.float64))
    return {
        "problem": problem.to_dict(),
        "ran": answer.ran,
        "kernel_us": answer.kernel_us,
        "tflops": problem.flops / answer.kernel_us / 1e6,
        "error_ratio": ratio,
        # NOTE: written so that a NaN is wrong.
        "verdict": "right" if ratio <= 1.0 else "wrong",
    }


def _error_ratio(problem: GemmProblem, a: Any, b: Any, d: Any) -> float:
    left = a.T if problem.layout.a_transposed else a
    right = b.T if problem.layout.b_transposed else b
    reference = left @ right
    accumulated = np.sqrt(problem.k) * _sum_epsilon(problem) * np.sqrt(np.square(left) @ np.square(right))
    allowed = _SAFETY * (accumulated + _epsilon(problem.out) * np.abs(reference)) + np.finfo(np.float64).tiny
    return float(np.max(np.abs(d - reference) / allowed))


def _draw(random: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Any:
    stored = numpy_type(dtype)
    if dtype.is_integer:
        return random.integers(np.iinfo(stored).min, np.iinfo(stored).max + 1, shape).astype(stored)
    return random.standard_normal(shape).astype(stored)


def _sum_epsilon(problem: GemmProblem) -> float:
    """Of products and their sum; tensor cores keep about 13 bits of 8-bit floats' products."""
    coarse = {DType.TFLOAT32: 2.0**-10, DType.FLOAT8_E4M3FN: 2.0**-13, DType.FLOAT8_E5M2: 2.0**-13}
    return coarse.get(problem.dtype, _epsilon(problem.accumulate))


def _epsilon(dtype: DType) -> float:
    if dtype.is_integer:
        return 0.0
    return float(ml_dtypes.finfo(numpy_type(dtype)).eps)  # type: ignore[no-untyped-call]
