"""From races to what is kept: the rows of ``suite-DEVICE-DTYPE.json``, and what each rests on."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.suite_contenders import AGAIN, BEST, CUBLAS, OURS, TORCH
from benchmarks.suite_race import Heat
from benchmarks.suite_shapes import Shape
from tilewright.problem import DType, GemmProblem, Layout
from tilewright.trial import BestConfig
from tuner.stats import CONFIDENCE, median, paired_ratio


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One shape; the fields are the keys of the JSON file, times are medians in microseconds.

    Attributes:
        m, n, k, dtype, layout: the problem.
        ours_us, cublas_us, cublaslt_best_us, torch_us: None for who took no part; on the host NumPy's BLAS
            stands in the place of ``cublaslt_best``.
        ours_tflops: TFLOP/s of our kernel.
        ratio_vs_cublaslt_best: median over the rounds of cuBLASLt's time over ours; above 1 we are faster.
        ci_low, ci_high: its interval at 99 %.
        config, family: our kernel.
        sm_mhz, watts: mean over the rounds; None where unknown.
        state: ``settled``, ``drifting`` or ``clock unknown``: the clocks when the rounds began.
        accumulate, group, shape: type of the sum, what the shape is an example of, its name.
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    ours_us: float
    cublas_us: float | None
    cublaslt_best_us: float | None
    torch_us: float | None
    ours_tflops: float
    ratio_vs_cublaslt_best: float | None
    ci_low: float | None
    ci_high: float | None
    config: dict[str, Any]
    family: str
    sm_mhz: float | None
    watts: float | None
    state: str
    accumulate: str
    group: str
    shape: str

    @property
    def problem(self) -> GemmProblem:
        """What was computed, its D in the suite's type."""
        accumulate = DType(self.accumulate)
        problem = Shape(self.group, self.m, self.n, self.k, Layout(self.layout), accumulate).problem(
            DType(self.dtype)
        )
        assert problem is not None
        return problem


def row(shape: Shape, best: BestConfig, heat: Heat) -> Row:
    """What a race said about a shape."""
    micros = {name: median(samples) for name, samples in heat.samples_us.items()}
    base = heat.samples_us.get(BEST)
    ratio = paired_ratio(base, heat.samples_us[OURS]) if base else None
    return Row(
        m=shape.m,
        n=shape.n,
        k=shape.k,
        dtype=best.problem.dtype.value,
        layout=shape.layout.value,
        ours_us=_rounded(micros[OURS]),
        cublas_us=_known(micros.get(CUBLAS)),
        cublaslt_best_us=_known(micros.get(BEST)),
        torch_us=_known(micros.get(TORCH)),
        ours_tflops=_rounded(best.problem.flops / micros[OURS] / 1e6),
        ratio_vs_cublaslt_best=_known(ratio.value if ratio else None),
        ci_low=_known(ratio.low if ratio else None),
        ci_high=_known(ratio.high if ratio else None),
        config=dict(best.config.knobs),
        family=best.config.family,
        sm_mhz=_known(heat.mhz),
        watts=_known(heat.watts),
        state=heat.state,
        accumulate=best.problem.accumulate.value,
        group=shape.group,
        shape=shape.name,
    )


def facts(best: BestConfig, heat: Heat) -> dict[str, Any]:
    """What a row rests on, raw samples included.

    ``again`` is our kernel against itself in the same race: an interval that misses 1 says how much of a
    ratio is noise.
    """
    again = paired_ratio(heat.samples_us[AGAIN], heat.samples_us[OURS])
    return {
        "problem": best.problem.to_dict(),
        "artifact": best.artifact,
        "provenance": dataclasses.asdict(best.provenance),
        "samples_us": {name: [round(us, 3) for us in samples] for name, samples in heat.samples_us.items()},
        "confidence": CONFIDENCE,
        "again": {"value": again.value, "low": again.low, "high": again.high},
        "contenders": heat.detail,
        "relative_errors": heat.errors,
        "absent": heat.absent,
        "operand_sets": heat.sets,
        "burst_us": heat.burst_us,
        "seconds": heat.seconds,
    }


def _known(value: float | None) -> float | None:
    return None if value is None else _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
