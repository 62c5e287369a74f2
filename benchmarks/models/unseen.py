"""``tilewright bench unseen``: shapes nobody tuned, one job each, then a race with the vendor library."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import RESULTS
from benchmarks.models.files import Row, RowFile
from benchmarks.models.fresh import ROUNDS, FreshTuner
from benchmarks.models.peers import add_peers, merged, stops
from benchmarks.models.shapes import UnseenShape
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.job import Level, TuneRequest
from tilewright.schema.problem import DType
from tilewright.schema.trial import BestConfig

RATIOS = ("ratio_back_to_back", "ratio_apart")
_IDENTITY = ("m", "n", "k", "layout", "level", "repeat", "gpu")
UNKNOWN = dict.fromkeys(("ours_us", "vendor_us", *RATIOS, "ci_low", "ci_high"))


@dataclasses.dataclass(frozen=True, slots=True)
class UnseenRequest:
    """What to measure.

    Attributes:
        options: of each job, by name; empty for the defaults.
        repeat: the number that tells this run from others of the same GPU.
        resume: leave out shapes with a result of this repeat on this GPU. Their winners are not in the
            database of this run.
        stop_after: start no shape and no peer after so many seconds; 0 for no bound.
        peers: whether to add what other tuners do (:mod:`benchmarks.models.peers`) to rows that lack it.
    """

    shapes: Sequence[UnseenShape]
    dtype: DType
    device: str
    compile_processes: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    out: Path = RESULTS
    repeat: int = 1
    rounds: int = ROUNDS
    resume: bool = False
    stop_after: float = 0.0
    peers: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class BenchResult:
    """Where the rows are, those of this run, and how many were not started."""

    path: Path
    rows: list[Row]
    left: int


def run_unseen(request: UnseenRequest, tell: Callable[[str], None]) -> BenchResult:
    """Tune and race shape by shape on one empty database; each row is written as soon as it is measured.

    Raises:
        DeviceUnavailable: the device, its libraries or the compiler are missing.
        ReportError: the file of an earlier run is damaged.
    """
    ends, rows, left = stops(time.monotonic(), request.stop_after), list[Row](), 0
    with FreshTuner(request.device, request.compile_processes) as tuner:
        facts = tuner.facts()
        name = f"unseen-{facts['device_class']}-{request.dtype}.json"
        file = RowFile(request.out / name, _IDENTITY, facts)
        todo = list(request.shapes)
        if request.resume:
            todo = [shape for shape in todo if not file.done(**_row(request, shape, facts["gpu"]))]
        for number, shape in enumerate(todo, 1):
            if ends():
                left = len(todo) - number + 1
                break
            tell(f"[{number}/{len(todo)}] {shape.name} {request.dtype} ({shape.source or shape.group})")
            row, samples = _measured(request, tuner, shape)
            rows.append(_row(request, shape, facts["gpu"]) | row)
            file.keep(rows[-1], samples)
            tell("  " + _line(rows[-1]))
        if request.peers:
            shapes = {(shape.m, shape.n, shape.k, shape.layout.value): shape for shape in request.shapes}
            lacking = [
                (row, shapes[key].problem(request.dtype))
                for row in file.rows_without("torch_ratio", repeat=request.repeat, gpu=facts["gpu"])
                if (key := (row["m"], row["n"], row["k"], row["layout"])) in shapes
            ]
            rows = merged(rows, add_peers(file, lacking, tuner, ends, tell))
    return BenchResult(file.path, rows, left)


def _row(request: UnseenRequest, shape: UnseenShape, gpu: str) -> Row:
    fields = dataclasses.asdict(shape) | {"layout": shape.layout.value}
    level = request.options.get("level", Level.FULL)
    return fields | {"dtype": request.dtype.value, "level": level, "repeat": request.repeat, "gpu": gpu}


def _measured(request: UnseenRequest, tuner: FreshTuner, shape: UnseenShape) -> tuple[Row, dict[str, Any]]:
    """The figures of a shape, and what they rest on."""
    problem = shape.problem(request.dtype)
    tuned = tuner.tune(TuneRequest(problem, **request.options))
    spent = {"tune_s": tuned.seconds, "trials": tuned.trials}
    best = tuned.winners.get(problem.m)
    if best is None:
        return UNKNOWN | spent | {"failure": tuned.failure, "kernel": ""}, {}
    figures, samples = measured(tuner, best, request.rounds, seed=request.repeat)
    return figures | spent, samples


def measured(
    tuner: FreshTuner, best: BestConfig, rounds: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of a winner in a race on its problem, and the samples; ``failure`` says why not."""
    row = UNKNOWN | {"kernel": str(best.config), "failure": ""}
    try:
        compared = tuner.compare(best, best.problem, rounds, seed)
    except DeviceUnavailable:
        raise
    except TilewrightError as error:
        return row | {"failure": str(error)}, {}
    return row | compared.row(), compared.facts()


def _line(row: Row) -> str:
    spent = f"{row['trials']} trials in {row['tune_s']:.1f} s"
    if row["failure"]:
        return f"no result: {row['failure']}; {spent}"
    ratios = f"{row['ratio_back_to_back']:.3f} back to back, {row['ratio_apart']:.3f} apart"
    return f"{row['ours_us']:.2f} us, {ratios} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]; {spent}"
