"""``tilewright bench model``: the weights of a model, each tuned on a ladder of M, and every row raced."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import RESULTS
from benchmarks.models.files import Row, RowFile
from benchmarks.models.fresh import ROUNDS, FreshTuner, Tuned
from benchmarks.models.peers import add_peers, merged, stops
from benchmarks.models.unseen import UNKNOWN, BenchResult, measured
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
        options: of each job, by name.
        resume: leave out weights whose rows have a result on this GPU and level.
        stop_after: start no weight and no peer after so many seconds; 0 for no bound.
        peers: whether to add what other tuners do (:mod:`benchmarks.models.peers`) to rows that lack it.
    """

    weights: Sequence[str]
    device: str
    compile_processes: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: DType = DType.BFLOAT16
    rows: tuple[int, ...] = ROWS
    out: Path = RESULTS
    rounds: int = ROUNDS
    resume: bool = False
    stop_after: float = 0.0
    peers: bool = False

    @property
    def level(self) -> str:
        """How much each job spends."""
        return str(self.options.get("level", Level.FULL))


def run_model(request: ModelRequest, tell: Callable[[str], None]) -> BenchResult:
    """Tune weight by weight on one empty database, then race each row; rows are written as they come.

    Raises:
        DeviceUnavailable: the device, its libraries or the compiler are missing.
        ReportError: the file of an earlier run is damaged.
    """
    ends, rows = stops(time.monotonic(), request.stop_after), list[Row]()
    with FreshTuner(request.device, request.compile_processes) as tuner:
        facts = tuner.facts()
        file = RowFile(request.out / f"model-{facts['device_class']}.json", _IDENTITY, facts)
        todo = [
            weight
            for weight in request.weights
            if not (request.resume and all(file.done(**row) for row in _rows(request, weight, facts["gpu"])))
        ]
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
        if request.peers:
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
    return TuneRequest(_problem(request, weight, request.rows[-1]), request.rows, **request.options)


def _raced(
    request: ModelRequest, tuner: FreshTuner, tuned: Tuned, row: Row
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of a row, and what they rest on. ``tune_s`` is the row's part of the job, ``job_s`` all."""
    best = tuned.winners.get(row["m"])
    spent = {
        "tune_s": round(tuned.seconds / len(request.rows), 3),
        "job_s": tuned.seconds,
        "trials": tuned.of_row.get(row["m"], 0),
    }
    if best is None:
        missing = {"failure": tuned.failure or "the row has no winner", "kernel": "", "regret": None}
        return UNKNOWN | spent | missing, {}
    figures, samples = measured(tuner, best, request.rounds)
    return figures | spent | {"regret": best.regret}, samples
