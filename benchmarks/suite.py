"""The suite: real shapes, our tuned kernel against cuBLASLt's best, cuBLAS and PyTorch.

    tilewright bench suite --dtype float16

tunes what the database has no winner for, races each winner (``benchmarks/suite_race.py``) and writes into
``benchmarks/results`` (or ``--out``): ``suite-DEVICE-DTYPE.json`` with one row a shape,
``.provenance.json`` with raw samples and algorithms, ``.tuning.json`` with what each shape took. All three
are written after every shape, so that whatever ends the run keeps what is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.facts import RESULTS, device_facts
from benchmarks.suite_book import Book, load_rows
from benchmarks.suite_pass import Pass
from benchmarks.suite_race import METHOD, ROUNDS
from benchmarks.suite_racer import Racer
from benchmarks.suite_rows import Row
from benchmarks.suite_shapes import HELD_OUT, SUITE, Shape, ShapesError
from benchmarks.suite_tuning import Tools, Workshop
from tilewright.problem import DType

BUDGET = 120
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class SuiteRequest:
    """What to measure.

    Attributes:
        tools: device, database and compilers.
        dtype: element type of A and B.
        shapes: what to measure, in order.
        part: names the set of shapes in the names of the files; empty for the suite itself.
        out: folder of the results.
        budget, seconds: measured trials and, where not 0, seconds to search for each shape.
        rounds: samples of each contender, 8 or more.
        seed: of every random choice.
        tune, retune: tune what was not tuned yet; tune also what was.
        resume: leave out shapes that the file holds already from the same run.
        stop_after: start no shape after so many seconds; 0 for no limit.
    """

    tools: Tools
    dtype: DType = DType.FLOAT16
    shapes: Sequence[Shape] = SUITE
    part: str = ""
    out: Path = RESULTS
    budget: int = BUDGET
    seconds: float = 0.0
    rounds: int = ROUNDS
    seed: int = 0
    tune: bool = True
    retune: bool = False
    resume: bool = False
    stop_after: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class SuiteResult:
    """How a run went.

    Attributes:
        path: the file of the rows; rows: all that it holds.
        failed: shapes without a result, with the reason.
        left: names of shapes that were not started.
        interrupted: Ctrl-C ended it.
    """

    path: Path
    rows: list[Row]
    failed: dict[str, str]
    left: list[str]
    interrupted: bool = False


def run_suite(request: SuiteRequest, tell: Tell) -> SuiteResult:
    """Tune, race and store, shape by shape; ``tell`` receives a line whenever something begins or ends.

    Raises:
        DeviceUnavailable: the device, its libraries or the compiler are missing.
        ShapesError: the element type has none of the shapes.
        ReportError: the file of an earlier run is damaged.
    """
    todo = [shape for shape in request.shapes if shape.problem(request.dtype)]
    if not todo:
        raise ShapesError(f"none of the {len(request.shapes)} shapes exists in {request.dtype}")
    with Racer(request.tools.device) as racer:
        run = {**device_facts(racer.spec, racer.driver), "method": METHOD, "libraries": racer.libraries}
        run |= {"dtype": request.dtype.value, "rounds": request.rounds, "seed": request.seed}
        path = _path(request, racer.spec.device_class.id)
        book = Book(path, run, _order(request))
        missing = [shape.name for shape in request.shapes if shape not in todo]
        if missing:
            tell(f"left out, there is no such problem in {request.dtype}: {', '.join(missing)}")
        for difference in book.differences():
            tell(f"{path.name} starts anew, it is of another run: {difference}")
        if request.resume:
            todo = [shape for shape in todo if shape.name not in book.rows]
        with Workshop(request.tools, racer) as shop:
            done = Pass(request, racer, book, shop, tell)
            done.run(todo, _earlier_rows(request, path))
    rows = list(book.rows.values())
    return SuiteResult(path, rows, done.failed, done.left, done.interrupted)


def _earlier_rows(request: SuiteRequest, path: Path) -> list[Row]:
    """Of every suite of the same device class, in the folder of the results and in the checkout."""
    prefix = path.stem.removesuffix(f"-{request.part}" if request.part else "").removesuffix(request.dtype)
    folders = dict.fromkeys((request.out.resolve(), RESULTS))
    files = [file for folder in folders for file in sorted(folder.glob(f"{prefix}*.json"))]
    return [row for file in files if "." not in file.stem for row in load_rows(file)]


def _order(request: SuiteRequest) -> list[str]:
    """Names of shapes as files have them, whichever part of them is asked for."""
    return list(dict.fromkeys(shape.name for shape in (*SUITE, *HELD_OUT, *request.shapes)))


def _path(request: SuiteRequest, device_class: str) -> Path:
    part = f"-{request.part}" if request.part else ""
    return request.out / f"suite-{device_class}-{request.dtype}{part}.json"
