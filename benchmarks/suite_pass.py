"""One pass over the shapes of a suite: tune, race, keep."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from benchmarks.suite_book import Book
from benchmarks.suite_race import Heat
from benchmarks.suite_racer import Racer
from benchmarks.suite_rows import Row, facts, row
from benchmarks.suite_shapes import Shape
from benchmarks.suite_tuning import Workshop, near_rows
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.problem import GemmProblem
from tilewright.trial import BestConfig
from tuner.job import TuneRequest

if TYPE_CHECKING:
    from benchmarks.suite import SuiteRequest


@dataclasses.dataclass(frozen=True, slots=True)
class _Racing:
    """A shape whose race is under way."""

    shape: Shape
    best: BestConfig
    log: dict[str, Any]
    heat: Future[Heat]


class Pass:
    """One pass over the shapes: while one is raced, the search for the next one is prepared.

    Attributes:
        failed: shapes without a result, with the reason.
        left: names of the shapes that were not started.
        interrupted: Ctrl-C ended it.
    """

    def __init__(
        self,
        request: SuiteRequest,
        racer: Racer,
        book: Book,
        shop: Workshop,
        tell: Callable[[str], None],
    ) -> None:
        self._request = request
        self._racer = racer
        self._book = book
        self._shop = shop
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
        won = self._shop.winner(problem)
        if won is None:
            self._fail(log, log["failure"] or "not tuned yet, and --no-tune was given")
            return
        heat = self._racer.start(problem, won[1], self._request.rounds, self._request.seed)
        self._racing = _Racing(shape, won[0], log, heat)

    def _finish(self) -> None:
        """Wait for the race under way and keep what it measured."""
        if self._racing is None:
            return
        heat, failure = self._result(self._racing.heat)
        racing, self._racing = self._racing, None  # NOTE: Ctrl-C during the wait leaves the race to keep
        log = racing.log
        if heat is None:
            self._fail(log, failure)
            return
        race_s = sum(heat.seconds.values())
        log |= {"race_s": round(race_s, 2), "gpu_s": round(log.get("gpu_s", 0.0) + race_s, 2)}
        found = row(racing.shape, racing.best, heat)
        self._book.keep(found, facts(racing.best, heat), log)
        self._tell(_line(found, log))

    def _result(self, racing: Future[Heat]) -> tuple[Heat | None, str]:
        try:
            return racing.result(), ""
        except DeviceUnavailable:
            raise
        except TilewrightError as error:
            return None, str(error)

    def _fail(self, log: dict[str, Any], reason: str) -> None:
        self.failed[log["shape"]] = log["failure"] = reason
        self._book.log(log["shape"], log)
        self._tell(f"  {log['shape']}: no result: {reason}")

    def _tune(self, problem: GemmProblem) -> dict[str, Any]:
        request = self._request
        if not request.tune or (not request.retune and self._shop.winner(problem)):
            return {"trials": 0, "tune_s": 0.0}
        job = TuneRequest(problem, (), request.budget, request.seconds, request.seed)
        return self._shop.tune(job, [*near_rows(self._earlier, problem), *self._shop.near(problem)])


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
