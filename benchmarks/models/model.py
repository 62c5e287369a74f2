"""``tilewright bench model``: the weights of a model, each tuned on a ladder of M, and every row raced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.common.fresh import FreshTuner, Tuned
from benchmarks.common.options import RowOptions
from benchmarks.models.files import Row, RowFile
from benchmarks.models.peers import add_peers, merged
from benchmarks.models.run import UNKNOWN, BenchResult, measured, without_result
from tilewright.schema.job import Level, TuneRequest
from tilewright.schema.problem import DType, GemmProblem, Layout

# N and K of the projections of Llama-3-8B; W is stored N x K.
WEIGHTS = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate+up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
ROWS = tuple(2**power for power in range(14))
_IDENTITY = ("n", "k", "m", "dtype", "level", "gpu")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRequest:
    """What to measure.

    Attributes:
        weights: of :data:`WEIGHTS`; rows: every M.
        run: how to run; a weight is left out if all of its rows have a result on this GPU and level.
        search: options of each job, by name.
    """

    weights: Sequence[str]
    compile_processes: int
    run: RowOptions = dataclasses.field(default_factory=RowOptions)
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: DType = DType.BFLOAT16
    rows: tuple[int, ...] = ROWS

    @property
    def level(self) -> str:
        """How much each job spends."""
        return str(self.search.get("level", Level.FULL))


def run_model(request: ModelRequest, tell: Callable[[str], None]) -> BenchResult:
    """Tune weight by weight on one empty database, then race each row; rows are written as they come.

    Raises:
        DeviceUnavailable: the device, its libraries or the compiler are missing.
        ReportError: the file of an earlier run is damaged.
    """
    ends, rows = request.run.ends(), list[Row]()
    with FreshTuner(request.run.device, request.compile_processes) as tuner:
        tuner.rehearse(request.dtype)
        facts = tuner.facts()
        file = RowFile(request.run.folder / f"model-{facts['device_class']}.json", _IDENTITY, facts)
        todo = list(request.weights)
        if request.run.resume:
            rows_of = {weight: _rows(request, weight, facts["gpu"]) for weight in todo}
            todo = [weight for weight in todo if not all(file.done(**row) for row in rows_of[weight])]
        left = len(todo)
        for weight in todo:
            if ends():
                break
            left -= 1
            tuned = tuner.tune(_job(request, weight))
            tell(f"{weight}: {len(tuned.winners)} rows, {tuned.trials} trials in {tuned.seconds:.1f} s")
            for row in _rows(request, weight, facts["gpu"]):
                figures, samples = _raced(request, tuner, tuned, row)
                rows.append(row | figures)
                file.keep(rows[-1], samples)
                tell(f"  m = {row['m']}: {figures['failure'] or figures['ratio_apart']}")
        if request.run.peers:
            lacking = [
                (row, _problem(request, row["weight"], row["m"]))
                for row in file.rows_without("torch_ratio", level=request.level, gpu=facts["gpu"])
                if row["weight"] in request.weights and row["dtype"] == request.dtype.value
            ]
            rows = merged(rows, add_peers(file, lacking, tuner, ends, tell))
    return BenchResult(file.path, rows, left)


def _rows(request: ModelRequest, weight: str, gpu: str) -> list[Row]:
    n, k = WEIGHTS[weight]
    alike = {"n": n, "k": k, "weight": weight, "level": request.level, "gpu": gpu}
    return [{**alike, "m": m, "dtype": request.dtype.value} for m in request.rows]


def _problem(request: ModelRequest, weight: str, m: int) -> GemmProblem:
    return GemmProblem(m, *WEIGHTS[weight], request.dtype, Layout.NT)


def _job(request: ModelRequest, weight: str) -> TuneRequest:
    return TuneRequest(_problem(request, weight, request.rows[-1]), request.rows, **request.search)


def _raced(
    request: ModelRequest, tuner: FreshTuner, tuned: Tuned, row: Row
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of a row, and what they rest on. ``tune_s`` is the row's part of the job, ``job_s`` all;
    ``phases_s`` those of the job."""
    best = tuned.winners.get(row["m"])
    spent = {
        "tune_s": round(tuned.seconds / len(request.rows), 3),
        "job_s": tuned.seconds,
        "phases_s": tuned.phases_s,
        "trials": tuned.of_row.get(row["m"], 0),
    }
    if best is None:
        failure = tuned.failure or tuned.missing.get(row["m"], "the row has no winner")
        missing = {"failure": failure, "kernel": "", "regret": None}
        return UNKNOWN | spent | missing, without_result(failure, tuned.traceback)
    figures, samples = measured(tuner, best, request.run.rounds)
    return figures | spent | {"regret": best.regret}, samples
