"""The report of a run of :mod:`benchmarks.client.mlp`: tolerance, times, speed-ups, and lines of text.

Times are microseconds a pass, one sample a round; candidates are ``torch`` and ``tilewright``, each also as
``..., graph``.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.schema.problem import DType, GemmProblem, Layout
from tuner.measure.stats import sample_interval, speed_ratio

SAMPLE_US = 10_000.0
METHOD = (
    "One sample of each candidate a round, in a fresh random order, after a second of load and without a "
    "pause, so the clocks are sustained ones. A sample is the time between two events around so many passes "
    f"that the quickest candidate takes {SAMPLE_US / 1000:.0f} ms, over their number; at the power limit the "
    "mean of a second of such, in two rounds. The weight matrices exceed the L2 cache several times, so they "
    "come from memory at every pass. low and high enclose the median, at the power limit the mean, at the "
    "stated confidence; spread_percent is the range of the middle half over it, and a speed-up is the median "
    "or the mean of the ratios within rounds."
)
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
_ROUNDINGS = 3


def products(dtypes: Sequence[str], tokens: Sequence[int], width: int, inner: int) -> list[GemmProblem]:
    """What the linear layers multiply: activations by weights stored row by output, bias added."""
    return [
        GemmProblem(m, n, k, DType(dtype), Layout.NT, has_bias=True)
        for dtype in dtypes
        for m in tokens
        for n, k in ((inner, width), (width, inner))
    ]


def tolerance(dtype: str) -> float:
    """Largest relative error, in Frobenius norms, of an MLP that accumulates in float32.

    The hidden layer, its activation and the result are each rounded to ``dtype``, by at most half a unit in
    the last place; float32 accumulators lose little beside that.
    """
    return _ROUNDINGS * _ROUNDOFF[dtype]


def accuracy(dtype: str, errors: Mapping[str, float], difference: float) -> dict[str, Any]:
    """Whether the candidates agree with float64, and the routed model with the plain one.

    Args:
        dtype: of the model.
        errors: relative error against float64, by candidate.
        difference: of the routed model's result to the plain one's, relative as well.
    """
    allowed = tolerance(dtype)
    return {
        "tolerance": allowed,
        "relative_error": dict(errors),
        "relative_difference": difference,
        # NOTE: every comparison with NaN is false, so a NaN is never within the tolerance.
        "equal": all(error <= allowed for error in (*errors.values(), difference)),
    }


def passes_per_sample(quickest_us: float) -> int:
    """How many passes last ``SAMPLE_US`` at that many microseconds each; one at least."""
    return max(1, math.ceil(SAMPLE_US / quickest_us))


def times(rows: Mapping[str, Sequence[float]], flops: float, periods: bool) -> dict[str, Any]:
    """Median, interval, spread and rate of each candidate, and every sample; at the power limit samples are
    means of whole ``periods``."""
    return {name: _times(samples, flops, periods) for name, samples in rows.items()}


def _times(samples: Sequence[float], flops: float, periods: bool) -> dict[str, Any]:
    found = sample_interval(samples, periods)
    low, _, high = statistics.quantiles(samples, n=4)
    return {
        "median_us": found.value,
        "low_us": found.low,
        "high_us": found.high,
        "confidence": found.confidence,
        "spread_percent": 100.0 * (high - low) / found.value,
        "tflops": flops / found.value / 1e6,
        "samples_us": list(samples),
    }


def speedups(rows: Mapping[str, Sequence[float]], periods: bool) -> dict[str, Any]:
    """How many times as fast the routed model is as the plain one, eager and as a graph."""
    pairs = {"eager": ("torch", "tilewright"), "graph": ("torch, graph", "tilewright, graph")}
    return {
        way: dataclasses.asdict(speed_ratio(rows[base], rows[candidate], periods))
        for way, (base, candidate) in pairs.items()
    }


def line(case: Mapping[str, Any]) -> str:
    """A case in one line."""
    medians = ", ".join(f"{name} {found['median_us']:.1f} us" for name, found in case["us"].items())
    gains = ", ".join(
        f"{way} {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        for way, ratio in case["speedup"].items()
    )
    error = case["accuracy"]["relative_error"]["tilewright"]
    said = f"{case['dtype']} M={case['tokens']}: {medians}; {gains} x torch"
    return f"{said}; error {error:.1e} of {case['accuracy']['tolerance']:.1e} allowed; ran {case['ran']}"
