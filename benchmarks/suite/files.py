"""Recorded suites: the rows of ``suite-DEVICE-DTYPE.json``, and what each rests on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.pages import ReportError
from benchmarks.common.shapes import Shape
from kernels import registry
from tilewright.schema.config import Config
from tilewright.schema.problem import DType, GemmProblem, Layout


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
        sm_mhz, watts: mean over the rounds; None if unknown.
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


def provenance_path(path: Path) -> Path:
    """Where what the rows rest on is kept."""
    return path.with_suffix(".provenance.json")


def tuning_path(path: Path) -> Path:
    """Where it is kept what tuning and racing took."""
    return path.with_suffix(".tuning.json")


def load_rows(path: Path) -> list[Row]:
    """The rows of a ``suite-DEVICE-DTYPE.json``, families and knobs under today's names.

    Raises:
        ReportError: it is not such a file.
    """
    try:
        return [_current(Row(**row)) for row in _parsed(path)]
    except (TypeError, KeyError) as error:
        raise ReportError(f"{path} is not a list of suite rows: {error}") from error


def _current(row: Row) -> Row:
    config = registry.completed(Config.of(row.family, row.config))
    return dataclasses.replace(row, family=config.family, config=dict(config.knobs))


def load_provenance(path: Path) -> dict[str, Any]:
    """What the rows of a file rest on.

    Raises:
        ReportError: the file beside it is missing or damaged.
    """
    data = _parsed(provenance_path(path))
    if not isinstance(data, dict):
        raise ReportError(f"{provenance_path(path)} is not the provenance of a suite")
    return data


def load_log(path: Path) -> Sequence[dict[str, Any]]:
    """The tuning log beside a file of rows; empty if there is none.

    Raises:
        ReportError: it is damaged.
    """
    log = tuning_path(path)
    entries: Sequence[dict[str, Any]] = _parsed(log) if log.exists() else []
    return entries


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot read {path}: {error}; move it away to start anew") from error
