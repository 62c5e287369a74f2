"""From races to what is kept: the rows of ``suite-DEVICE-DTYPE.json``, and what each rests on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common.pages import ReportError
from benchmarks.common.results import now, write_json
from benchmarks.suite.opponents import AGAIN, BEST, CUBLAS, OURS, TORCH
from benchmarks.suite.race import RaceResult
from benchmarks.suite.shapes import Shape
from kernels import registry
from tilewright.schema.config import Config
from tilewright.schema.problem import DType, GemmProblem, Layout
from tilewright.schema.trial import BestConfig
from tuner.measure.stats import CONFIDENCE, median, paired_ratio


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


def row(shape: Shape, best: BestConfig, raced: RaceResult) -> Row:
    """What a race said about a shape."""
    micros = {name: median(samples) for name, samples in raced.samples_us.items()}
    base = raced.samples_us.get(BEST)
    ratio = paired_ratio(base, raced.samples_us[OURS]) if base else None
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
        sm_mhz=_known(raced.mhz),
        watts=_known(raced.watts),
        state=raced.state,
        accumulate=best.problem.accumulate.value,
        group=shape.group,
        shape=shape.name,
    )


def facts(best: BestConfig, raced: RaceResult) -> dict[str, Any]:
    """What a row rests on, raw samples included.

    ``again`` is our kernel against itself in the same race: an interval that misses 1 says how much of a
    ratio is noise.
    """
    again = paired_ratio(raced.samples_us[AGAIN], raced.samples_us[OURS])
    return {
        "problem": best.problem.to_dict(),
        "artifact": best.artifact,
        "provenance": dataclasses.asdict(best.provenance),
        "samples_us": {name: [round(us, 3) for us in samples] for name, samples in raced.samples_us.items()},
        "confidence": CONFIDENCE,
        "again": {"value": again.value, "low": again.low, "high": again.high},
        "candidates": raced.detail,
        "relative_errors": raced.errors,
        "absent": raced.absent,
        "operand_sets": raced.sets,
        "burst_us": raced.burst_us,
        "seconds": raced.seconds,
    }


def _known(value: float | None) -> float | None:
    return None if value is None else _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


_Found = TypeVar("_Found")
_IDENTITY = ("device_class", "driver", "method", "libraries")


class ResultFiles:
    """The results of each shape, in memory and on disk.

    Attributes:
        path: the file of the rows; the other files are beside it.
        rows: rows by the name of their shape.
    """

    def __init__(self, path: Path, run: dict[str, Any], order: Sequence[str]) -> None:
        """Take over what the files hold where they are of the same run; ``order`` is that of the shapes.

        Raises:
            ReportError: they are there but damaged.
        """
        self.path = path
        self._run = run
        self._places = {name: place for place, name in enumerate(order)}
        self.rows: dict[str, Row] = {}
        self._facts: dict[str, Any] = {}
        self._log: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._take_over(load_provenance(path))

    def differences(self) -> list[str]:
        """In what the run of the files before this one differs from it, in words."""
        before = load_provenance(self.path) if self.path.exists() else self._run
        return [
            f"{name}: {before.get(name)} there, {self._run[name]} now"
            for name in _IDENTITY
            if before.get(name) != self._run[name]
        ]

    def keep(self, row: Row, facts: dict[str, Any], log: dict[str, Any]) -> None:
        """Add a shape or replace it, and write all files."""
        self.rows[row.shape], self._facts[row.shape] = row, facts
        self.log(row.shape, log)

    def log(self, shape: str, log: dict[str, Any]) -> None:
        """Keep what was spent on a shape, and write all files."""
        self._log[shape] = log
        self.rows, self._facts, self._log = map(self._sorted, (self.rows, self._facts, self._log))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(tuning_path(self.path), list(self._log.values()))
        write_json(provenance_path(self.path), {"date": now(), **self._run, "shapes": self._facts})
        write_json(self.path, [dataclasses.asdict(row) for row in self.rows.values()])

    def _sorted(self, found: dict[str, _Found]) -> dict[str, _Found]:
        last = len(self._places)
        return {name: found[name] for name in sorted(found, key=lambda one: self._places.get(one, last))}

    def _take_over(self, before: dict[str, Any]) -> None:
        if any(before.get(name) != self._run[name] for name in _IDENTITY):
            return
        self.rows = {row.shape: row for row in load_rows(self.path)}
        self._facts = before.get("shapes", {})
        log = tuning_path(self.path)
        self._log = {entry["shape"]: entry for entry in _parsed(log)} if log.exists() else {}


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
