"""``tilewright bench suite`` and ``bench unseen``: a job for each shape, then a race with the vendor library.

The database is empty at first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.fresh import FAILURES, ROUNDS, FreshTuner, reason, traceback_of
from benchmarks.common.options import RowOptions
from benchmarks.common.shapes import Shape
from benchmarks.models.files import Row, RowFile
from benchmarks.models.peers import add_peers, merged
from tilewright.errors import DeviceUnavailable
from tilewright.schema.job import Level, TuneRequest
from tilewright.schema.problem import DType
from tilewright.schema.trial import BestConfig

MOST_FAILURES = 3  # in a row; more tell of the device or the program, not of the shapes
RATIOS = ("ratio_back_to_back", "ratio_apart")
_SHAPE = ("m", "n", "k", "layout", "accumulate")
_IDENTITY = (*_SHAPE, "level", "repeat", "gpu")
UNKNOWN = dict.fromkeys(("ours_us", "vendor_us", *RATIOS, "ci_low", "ci_high"))


@dataclasses.dataclass(frozen=True, slots=True)
class ShapesRequest:
    """What to measure.

    Attributes:
        name: the file of the rows is ``NAME-DEVICE-DTYPE.json``.
        run: how to run; those that are left out have no winner in the database of this run.
        search: options of each job, by name; empty for the defaults.
    """

    name: str
    shapes: Sequence[Shape]
    dtype: DType
    compile_processes: int
    run: RowOptions = dataclasses.field(default_factory=RowOptions)
    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class BenchResult:
    """Where the rows are, those of this run, and how many were not started; ``stopped`` says why the run
    ended by itself."""

    path: Path
    rows: list[Row]
    left: int
    stopped: str = ""


def run_shapes(request: ShapesRequest, tell: Callable[[str], None]) -> BenchResult:
    """Tune and race shape by shape on one database; each row is written as soon as it is measured.

    Shapes that the element type does not have are left out. A shape that fails gets a row with the reason,
    and the next one follows, until :data:`MOST_FAILURES` failed in a row.

    Raises:
        DeviceUnavailable: the device, its libraries or the compiler are missing.
        ReportError: the file of an earlier run is damaged.
    """
    run, ends, rows, stopped = request.run, request.run.ends(), list[Row](), ""
    with FreshTuner(run.device, request.compile_processes) as tuner:
        tuner.rehearse(request.dtype)
        facts = tuner.facts()
        name = f"{request.name}-{facts['device_class']}-{request.dtype}.json"
        file = RowFile(run.folder / name, _IDENTITY, facts)
        todo = [shape for shape in request.shapes if shape.problem(request.dtype)]
        if omitted := [shape.name for shape in request.shapes if not shape.problem(request.dtype)]:
            tell(f"{request.dtype} has no kernels for {', '.join(omitted)}, which are left out")
        if run.resume:
            todo = [shape for shape in todo if not file.done(**_row(request, shape, facts["gpu"]))]
        left = len(todo)
        for number, shape in enumerate(todo, 1):
            if ends():
                break
            tell(f"[{number}/{len(todo)}] {shape.name} {request.dtype} ({shape.source or shape.group})")
            row, samples = _measured(request, tuner, shape)
            rows.append(_row(request, shape, facts["gpu"]) | row)
            file.keep(rows[-1], samples)
            tell("  " + _line(rows[-1]))
            left -= 1
            if left and len(rows) >= MOST_FAILURES and all(one["failure"] for one in rows[-MOST_FAILURES:]):
                stopped = f"stopped: {MOST_FAILURES} shapes in a row failed"
                break
        if run.peers and not stopped:
            problems = {
                tuple(_row(request, shape, "")[name] for name in _SHAPE): shape.problem(request.dtype)
                for shape in request.shapes
            }
            lacking = [
                (row, problem)
                for row in file.rows_without("torch_ratio", repeat=run.repeat, gpu=facts["gpu"])
                if (problem := problems.get(tuple(row.get(name) for name in _SHAPE)))
            ]
            rows = merged(rows, add_peers(file, lacking, tuner, ends, tell))
    return BenchResult(file.path, rows, left, stopped)


def _row(request: ShapesRequest, shape: Shape, gpu: str) -> Row:
    fields = dataclasses.asdict(shape) | {"layout": shape.layout.value}
    level = request.search.get("level", Level.FULL)
    return fields | {"dtype": request.dtype.value, "level": level, "repeat": request.run.repeat, "gpu": gpu}


def _measured(request: ShapesRequest, tuner: FreshTuner, shape: Shape) -> tuple[Row, dict[str, Any]]:
    """The figures of a shape, and what they rest on."""
    problem = shape.problem(request.dtype)
    assert problem is not None
    tuned = tuner.tune(TuneRequest(problem, **request.search))
    spent = {"tune_s": tuned.seconds, "phases_s": tuned.phases_s, "trials": tuned.trials}
    best = tuned.winners.get(problem.m)
    if best is None:
        return UNKNOWN | spent | {"failure": tuned.failure, "kernel": ""}, without_result(
            tuned.failure, tuned.traceback
        )
    figures, samples = measured(tuner, best, request.run.rounds, seed=request.run.repeat)
    return figures | spent, samples


def measured(
    tuner: FreshTuner, best: BestConfig, rounds: int | None, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of a winner in a race on its problem, and the samples; ``failure`` in both says why not."""
    row = UNKNOWN | {"kernel": str(best.config), "failure": ""}
    try:
        compared = tuner.compare(best, best.problem, rounds or ROUNDS, seed)
    except DeviceUnavailable:
        raise
    except FAILURES as error:
        why = reason(error)
        return row | {"failure": why}, without_result(why, traceback_of(error))
    return row | compared.row(), compared.facts()


def without_result(failure: str, traceback: str) -> dict[str, Any]:
    """What a row without a result rests on."""
    return {"failure": failure} | ({"traceback": traceback} if traceback else {})


def _line(row: Row) -> str:
    spent = f"{row['trials']} trials in {row['tune_s']:.1f} s"
    if row["failure"]:
        return f"no result: {row['failure']}; {spent}"
    ratios = f"{row['ratio_back_to_back']:.3f} back to back, {row['ratio_apart']:.3f} apart"
    interval = f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    return f"{row['ours_us']:.2f} us, {ratios}, the lower in {interval}; {spent}"
