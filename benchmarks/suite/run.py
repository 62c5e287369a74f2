"""One pass over the shapes of a suite: tune, race, keep."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.common.results import RESULTS, device_facts
from benchmarks.suite.files import ResultFiles, Row, facts, load_rows, row
from benchmarks.suite.race import METHOD, ROUNDS, RaceResult
from benchmarks.suite.racer import Racer
from benchmarks.suite.shapes import HELD_OUT, SUITE, Shape, ShapesError
from benchmarks.suite.tuning import SuiteTuner, Tools, near_rows
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.job import TuneRequest
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import BestConfig


@dataclasses.dataclass(frozen=True, slots=True)
class _Racing:
    """A shape whose race is in progress."""

    shape: Shape
    best: BestConfig
    log: dict[str, Any]
    raced: Future[RaceResult]


class SuiteRun:
    """A run over the shapes: while one shape is raced, the search for the next one is prepared.

    Attributes:
        failed: shapes without a result, with the reason.
        left: names of the shapes that were not started.
        interrupted: whether Ctrl-C ended it.
    """

    def __init__(
        self,
        request: SuiteRequest,
        racer: Racer,
        files: ResultFiles,
        suite_tuner: SuiteTuner,
        tell: Callable[[str], None],
    ) -> None:
        self._request = request
        self._racer = racer
        self._files = files
        self._suite_tuner = suite_tuner
        self._tell = tell
        self._earlier: Sequence[Row] = ()
        self._racing: _Racing | None = None
        self.failed: dict[str, str] = {}
        self.left: list[str] = []
        self.interrupted = False

    def run(self, todo: Sequence[Shape], earlier: Sequence[Row]) -> None:
        """Every shape in turn, until the time is up or Ctrl-C; a race under way is waited for.

        ``earlier`` are rows whose configs are tried first on near shapes.

        Raises:
            DeviceUnavailable: the compiler or the device's libraries are missing.
        """
        self._earlier, self.left = earlier, [shape.name for shape in todo]
        started, limit = time.monotonic(), self._request.stop_after
        try:
            for number, shape in enumerate(todo, 1):
                if limit and time.monotonic() - started > limit:
                    break
                self._tell(f"[{number}/{len(todo)}] {shape.name} {self._request.dtype} ({shape.group})")
                self._start(shape)
                self.left.remove(shape.name)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._finish()

    def _start(self, shape: Shape) -> None:
        """Tune where needed, take the race before to its end, and start this one's."""
        problem = shape.problem(self._request.dtype)
        assert problem is not None
        log = {"shape": shape.name, "problem": problem.to_dict(), "failure": "", **self._tune(problem)}
        self._finish()
        won = self._suite_tuner.winner(problem)
        if won is None:
            self._fail(log, log["failure"] or "not tuned yet, and --no-tune was given")
            return
        raced = self._racer.start(problem, won[1], self._request.rounds, self._request.seed)
        self._racing = _Racing(shape, won[0], log, raced)

    def _finish(self) -> None:
        """Wait for the race under way and keep what it measured."""
        if self._racing is None:
            return
        raced, failure = self._result(self._racing.raced)
        racing, self._racing = self._racing, None  # NOTE: Ctrl-C during the wait leaves the race to keep
        log = racing.log
        if raced is None:
            self._fail(log, failure)
            return
        race_s = sum(raced.seconds.values())
        log |= {"race_s": round(race_s, 2), "gpu_s": round(log.get("gpu_s", 0.0) + race_s, 2)}
        found = row(racing.shape, racing.best, raced)
        self._files.keep(found, facts(racing.best, raced), log)
        self._tell(_line(found, log))

    def _result(self, racing: Future[RaceResult]) -> tuple[RaceResult | None, str]:
        try:
            return racing.result(), ""
        except DeviceUnavailable:
            raise
        except TilewrightError as error:
            return None, str(error)

    def _fail(self, log: dict[str, Any], reason: str) -> None:
        self.failed[log["shape"]] = log["failure"] = reason
        self._files.log(log["shape"], log)
        self._tell(f"  {log['shape']}: no result: {reason}")

    def _tune(self, problem: GemmProblem) -> dict[str, Any]:
        request = self._request
        if not request.tune or (not request.retune and self._suite_tuner.winner(problem)):
            return {"trials": 0, "tune_s": 0.0}
        job = TuneRequest(problem, max_trials=request.budget, max_seconds=request.seconds, seed=request.seed)
        return self._suite_tuner.tune(
            job, [*near_rows(self._earlier, problem), *self._suite_tuner.near(problem)]
        )


def _line(found: Row, log: dict[str, Any]) -> str:
    said = [f"{found.ours_us:.2f} us", f"{found.ours_tflops:.4g} TFLOP/s", _lead(found), found.family]
    said += [f"{found.sm_mhz:.0f} MHz"] if found.sm_mhz else []
    said += [f"{found.watts:.0f} W"] if found.watts else []
    spent = f"{log['trials']} trials in {log['tune_s']:.1f} s, raced in {log['race_s']:.1f} s"
    return f"  {found.shape}: {', '.join(said)}, {found.state}; {spent}"


def _lead(found: Row) -> str:
    if found.ratio_vs_cublaslt_best is None:
        return "no vendor to compare with"
    return f"{found.ratio_vs_cublaslt_best:.3f} [{found.ci_low:.3f}, {found.ci_high:.3f}] x the vendor's best"


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
        rounds: samples of each candidate, 8 or more.
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
        interrupted: whether Ctrl-C ended it.
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
        files = ResultFiles(path, run, _order(request))
        missing = [shape.name for shape in request.shapes if shape not in todo]
        if missing:
            tell(f"left out, there is no such problem in {request.dtype}: {', '.join(missing)}")
        for difference in files.differences():
            tell(f"{path.name} starts anew, it is of another run: {difference}")
        if request.resume:
            todo = [shape for shape in todo if shape.name not in files.rows]
        with SuiteTuner(request.tools, racer) as suite_tuner:
            done = SuiteRun(request, racer, files, suite_tuner, tell)
            done.run(todo, _earlier_rows(request, path))
    rows = list(files.rows.values())
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
