"""What the rows of a job on a ladder share, and each row: a job on one problem (:mod:`tuner.job.ladder`)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem, LaunchError, TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.job import ROWS_OF_A_JOB, JobProgress, Level, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Outcome, Provenance, Trial
from tuner.job.context import InitialConfigs, JobContext, WinnerRecorder
from tuner.job.first_configs import COUNTS, Measured, first_configs, open_for
from tuner.job.loop import Ahead, Loop, of_today, why_outdated
from tuner.job.progress import FROM_LADDER, PHASES, ProgressTracker, timed
from tuner.search.search import MEASURED
from tuner.workers.process import WorkerError

# Of the seconds, for the searches; in the others, kernels are measured on the rows beside theirs.
SEARCHED = 0.8
ROW_FRACTION = 1 / ROWS_OF_A_JOB  # of the trials of the largest row, for each other one
RACED = 0.05  # regret up to which a kernel takes part in the race of a row
OWN = 3  # best kernels of a row that are measured on the rows beside it, and race there
_SECONDS = ("compile_s", *(f"{phase}_s" for phase in PHASES))
_log = logging.getLogger("tilewright.job")


def _requests(request: TuneRequest) -> Iterator[TuneRequest]:
    """The request of each row, the largest M first: its part of the trials, and when its seconds end. The
    largest of a quick job has no more trials than others may (benchmarks/lab/2026-11-30-quick-ladders.md)."""
    fewer = max(1, round(ROW_FRACTION * request.budget))
    most = COUNTS[Level.QUICK].most if request.level is Level.QUICK else request.budget
    budgets = [min(request.budget, most)] + [fewer] * (len(request.ladder) - 1)
    spent = itertools.accumulate(budgets)
    for problem, budget, until in zip(reversed(request.problems), budgets, spent, strict=True):
        seconds = SEARCHED * request.max_seconds * until / sum(budgets)
        yield dataclasses.replace(request, problem=problem, ladder=(), max_trials=budget, max_seconds=seconds)


class LadderJob:
    """What the rows of a job share: trials, kernels, progress and results.

    Attributes:
        context: of the job on the whole ladder.
        winners: stores the winners.
        initial_configs: of a problem, from the database.
        trials: those of all rows, by number.
        results: the winners so far, by M.
        errors: why rows have no winner, by M.
    """

    def __init__(self, context: JobContext, winners: WinnerRecorder, initial_configs: InitialConfigs) -> None:
        self.context, self.winners, self.initial_configs = context, winners, initial_configs
        self.started = time.monotonic()
        self.trials = context.recorder.trials()
        self.results = winners.row_results()
        self.errors = winners.row_errors()
        self.racing = bool(self.results)
        self._earlier = tuple(self.trials)
        self._known = sum(trial.outcome in MEASURED for trial in self.trials)
        self._kernels: dict[str, Artifact] = {}
        self._of_rows: dict[int, JobProgress] = {}
        self._of_ended: list[JobProgress] = []  # of searches that a row had before its last one
        self._last = JobProgress("search", 0, 0)
        self._rows = {request.problem.m: Row(self, request) for request in _requests(context.request)}

    @property
    def planned(self) -> int:
        """Trials to measure on all rows."""
        return sum(row.context.request.max_trials for row in self._rows.values())

    def search(self) -> list[Row]:
        """Search the rows, the largest M first; gives those that a family computes.

        Raises:
            InvalidProblem: no family computes any of them.
            WorkerDied, WorkerTimeout, LaunchError: no search of those that one computes went to its end.
        """
        rows = list(self._rows.values())
        with ThreadPoolExecutor(1) as beside, contextlib.ExitStack() as begun:
            for row in rows:
                begun.callback(row.cancel_begun)
            return self._search(rows, beside)

    def _search(self, rows: Sequence[Row], beside: Executor) -> list[Row]:
        done, errors = list[Row](), list[TilewrightError]()
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            if self.context.cancelled.is_set():
                break
            measured = [one.measured for one in done]
            row.start_from(measured)
            ahead = following if done else None
            then = functools.partial(ahead.compile_ahead, measured, beside) if ahead else None
            try:
                if self._searched(row.m):
                    row.reopen()
                else:
                    row.search(then)
            except (InvalidProblem, WorkerError, LaunchError) as error:
                if self.context.cancelled.is_set():
                    break
                self.failed(row.m, str(error))
                errors.append(error)
            else:
                done.append(row)
        if errors and not (done or self.results or self.context.cancelled.is_set()):
            raise min(errors, key=lambda error: isinstance(error, InvalidProblem))
        return done

    def _searched(self, m: int) -> bool:
        """Whether an earlier run ended the search of a row: it went on with the next one, or with more."""
        later = any(one.origin == FROM_LADDER or (one.m or m) < m for one in self._earlier)
        return later or self.racing or m in self.errors

    def kernel(self, digest: str) -> Artifact | None:
        """The kernel of this job with a digest. A kernel that an interrupted run measured is built again, for
        the row whose search proposed it. None if that fails or today's sources make another kernel of its
        config, or if no search of this run's rows proposed it."""
        if digest not in self._kernels:
            own = (one for one in self.trials if one.artifact == digest and one.origin != FROM_LADDER)
            if (trial := next(own, None)) and trial.m in self._rows:
                context = self._rows[trial.m].context
                if why_outdated(trial.config, context) is None:
                    config = FAMILIES[trial.config.family].completed(trial.config)
                    try:
                        if built := context.submit(config).result().artifact:
                            self._kernels[built.digest] = built
                    except WorkerError as error:
                        _log.info("job %s: %s was not built again: %s", context.job_id, config, error)
        return self._kernels.get(digest)

    def add(self, trial: Trial, artifact: Artifact | None) -> None:
        """Commit a trial under the next number of the job."""
        kept = dataclasses.replace(trial, number=self.trials[-1].number + 1 if self.trials else 0)
        if artifact is not None and trial.outcome is Outcome.OK:
            self._kernels[artifact.digest] = artifact
        self.context.recorder.add_trial(kept, artifact)
        self.trials.append(kept)

    def goes_on(self, m: int) -> None:
        """Add the seconds that a row spends from now on to those that it spent so far."""
        if ended := self._of_rows.pop(m, None):
            self._of_ended.append(ended)

    def may_spend_on(self, best: BestConfig) -> bool:
        """Whether a row with this winner gets more trials: it loses to the vendor library (not to a stand-in
        for it), and the job is not quick, not cancelled and has time left."""
        loses = best.speedup_high < 1.0 and not (best.baseline and best.baseline.stands_in)
        ends = self.time_is_up or self.context.cancelled.is_set()
        return loses and not ends and self.context.request.level is not Level.QUICK

    def decided(self, best: BestConfig, artifact: Artifact, raced: BestConfig | None) -> bool:
        """Commit the winner of a row; False if another job stored one since ``raced`` was the stored one."""
        replaces = self.winners.set_best(best, artifact, raced)
        self.results[best.problem.m] = best
        self._kernels[artifact.digest] = artifact
        return replaces

    def failed(self, m: int, reason: str) -> None:
        """Commit that a row has no winner."""
        _log.info("job %s: no winner for m = %d: %s", self.context.job_id, m, reason)
        if m not in self.errors and m not in self.results:
            self.winners.set_row_error(m, reason)
            self.errors[m] = reason

    def row_progress(self, m: int, progress: JobProgress) -> None:
        """Publish the progress of the job, given that of one of its rows."""
        self._of_rows[m] = progress
        self._last = dataclasses.replace(progress, m=m)
        self.publish(progress.phase)

    def publish(self, phase: str) -> None:
        """Publish the progress of the job: counts and seconds are those of all its rows."""
        measured, elapsed_s = sum(one.outcome in MEASURED for one in self.trials), self._elapsed_s
        planned, of_this_run = max(measured, self.planned), measured - self._known
        eta_s = (planned - measured) * elapsed_s / of_this_run if phase == "search" and of_this_run else None
        seconds: dict[str, Any] = {
            name: sum(getattr(one, name) for one in (*self._of_rows.values(), *self._of_ended))
            for name in _SECONDS
        }
        self.context.recorder.set_progress(
            dataclasses.replace(
                self._last,
                phase=phase,
                measured=measured,
                planned=planned,
                failed=len(self.trials) - measured,
                elapsed_s=elapsed_s,
                eta_s=eta_s,
                rows_done=len(self.results),
                **seconds,
            )
        )

    @property
    def time_is_up(self) -> bool:
        """Whether the seconds of the request were spent."""
        return 0 < self.context.request.max_seconds <= self._elapsed_s

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.started


class Row:
    """One row: a job on one problem, to the loop and the races. What it records goes to the ladder's job.

    Attributes:
        m: of the row.
        context: of the job on its problem.
        tracker: of its trials, from its search on.
        searched_on: whether it had more trials after a race.
    """

    tracker: ProgressTracker

    def __init__(self, job: LadderJob, request: TuneRequest) -> None:
        self.m = request.problem.m
        self.context = dataclasses.replace(job.context, request=request, recorder=self)
        self._job = job
        self.searched_on = False
        self._most_followed = max(2, request.max_trials)
        self._first, self._known_configs = list[Config](), list[Config]()
        self._begun: Future[Ahead] | None = None

    @property
    def problem(self) -> GemmProblem:
        """The problem of the row."""
        return self.context.problem

    def start_from(self, done: Sequence[Measured]) -> None:
        """Choose the configs that the search tries first, and the families that it goes on with."""
        request, known = self.context.request, self._job.initial_configs(self.problem)
        if not any(row.us for row in done):
            self._known_configs = list(known)
            return
        self._first = first_configs(request, self.context.device, done, known)
        trials = max(request.max_trials, len(self._first))
        families = tuple(sorted({config.family for config in self._first})) or request.families
        self.context = dataclasses.replace(
            self.context, request=dataclasses.replace(request, max_trials=trials, families=families)
        )

    def compile_ahead(self, done: Sequence[Measured], beside: Executor) -> None:
        """Begin to compile what the row would try first after ``done``, without the row that is searched now,
        ``beside`` its trials: most of it is what the row will try. On the host nothing."""
        request, device = self.context.request, self.context.device

        def begin() -> Ahead:
            return {config: self.context.submit(config) for config in first_configs(request, device, done)}

        if device.kind != "host":
            self._begun = beside.submit(begin)

    def cancel_begun(self) -> None:
        """Cancel what :meth:`compile_ahead` began and no search took."""
        begun, self._begun = self._begun, None
        if begun and begun.exception() is None:
            for work in begun.result().values():
                work.cancel()

    def search(self, then: Callable[[], None] | None = None) -> None:
        """Search the row. Calls ``then`` once its first compilations have begun.

        Raises:
            InvalidProblem: no config of any family is valid for its problem.
        """
        followed = {trial.config for trial in self._followed}
        first = [config for config in self._first if config not in followed]
        ahead = self._open(first)
        if then:
            then()
        Loop(self.context, self._search, self.tracker, first, ahead).run()
        self._replay(self._followed)

    def reopen(self) -> None:
        """Open the search that an earlier run ended, and recall its trials.

        Raises:
            InvalidProblem: as :meth:`search`.
        """
        for work in self._open(()).values():
            work.cancel()
        self.recall()

    def recall(self) -> None:
        """Have the tracker hold all that the row measured."""
        self.tracker.clear()
        self._replay(self._known())

    def _open(self, first: Sequence[Config]) -> Ahead:
        """Open the search of the row, and a tracker for it. Returns the compilations that have begun."""
        opening = time.monotonic()
        begun = self._begun.result() if self._begun else {}
        self._search, ahead = open_for(self.context, self._known_configs, first, begun)
        self._begun = None
        for config in begun.keys() - ahead.keys():
            begun[config].cancel()
        # A row that is searched on measures nothing twice.
        self._search.reserve(trial.config for trial in self._followed)
        self._job.goes_on(self.m)
        open_s = time.monotonic() - opening
        self.tracker = ProgressTracker(self.context.request, self, self._search, self._job.started, open_s)
        return ahead

    def _replay(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            known = of_today(trial, self.context)
            self.tracker.replay(dataclasses.replace(known, number=len(self.tracker.trials)))

    def search_more(self) -> None:
        """Search on, with as many trials again and without a bound of seconds before the job's."""
        trials, seconds = 2 * self.context.request.max_trials, self._job.context.request.max_seconds
        more = dataclasses.replace(self.context.request, max_trials=trials, max_seconds=seconds)
        self.context = dataclasses.replace(self.context, request=more)
        self.searched_on = True
        self.search()

    @property
    def measured(self) -> Measured:
        """The times of its configs."""
        return Measured.of(self.m, self.tracker.trials)

    @property
    def own_best(self) -> list[Trial]:
        """The fastest trial of each of the best kernels; of a quick job the best one alone."""
        regrets, most = self.regrets(), 1 if self.context.request.level is Level.QUICK else OWN
        complete = [trial for trial in self.times().values() if trial.outcome is Outcome.OK]
        near = [trial for trial in complete if regrets[str(trial.artifact)] <= RACED]
        return sorted(near, key=lambda trial: timed(trial).median_us)[:most]

    def times(self) -> dict[str, Trial]:
        """The fastest trial of each kernel that was measured."""
        found: dict[str, Trial] = {}
        for trial in self.tracker.comparable:
            if trial.outcome in MEASURED and trial.artifact is not None:
                before = found.setdefault(trial.artifact, trial)
                if timed(trial).median_us < timed(before).median_us:
                    found[trial.artifact] = trial
        return found

    def regrets(self) -> dict[str, float]:
        """The regret of each kernel that was measured, against the best of them."""
        medians = {digest: timed(trial).median_us for digest, trial in self.times().items()}
        fastest = min(medians.values(), default=1.0)
        return {digest: median / fastest - 1.0 for digest, median in medians.items()}

    def follow(self, trial: Trial | BestConfig, always: bool = False) -> float:
        """The regret of another row's kernel on this row; it is measured if it was not yet. Infinite if the
        kernel does not run here, or if this row may measure no more kernels of other rows; ``always`` lifts
        that limit."""
        known = [one for one in self.tracker.trials if one.artifact == trial.artifact]
        followed = sum(one.origin == FROM_LADDER for one in self.tracker.trials)
        may_measure = not known and (always or followed < self._most_followed)
        artifact = self._job.kernel(str(trial.artifact)) if may_measure else None
        if artifact and self._why_not(trial.config, artifact) is None:
            with self.tracker.spending("trying"):
                result = self.context.try_config(trial.config, artifact, self.tracker.incumbent_us)
            number = len(self.tracker.trials)
            tried = Trial(number, trial.config, outcome=result.outcome, origin=FROM_LADDER)
            self.tracker.add(self.context.measured(tried, artifact, result), artifact)
            self.tracker.publish("search")
        return self.regrets().get(str(trial.artifact), math.inf)

    def _why_not(self, config: Config, artifact: Artifact) -> str | None:
        """The reason a kernel of another row is not valid here, or None."""
        return why_outdated(config, self.context) or artifact.plan.why_not(self.problem)

    def trials(self) -> list[Trial]:
        """The trials of this row's own search, numbered from 0."""
        own = (trial for trial in self._known() if trial.origin != FROM_LADDER)
        return [dataclasses.replace(trial, number=number) for number, trial in enumerate(own)]

    @property
    def _followed(self) -> list[Trial]:
        """The trials of other rows' kernels on this row."""
        return [trial for trial in self._known() if trial.origin == FROM_LADDER]

    def _known(self) -> list[Trial]:
        """Those of this row; without those that it had after a race, until it is searched on."""
        known = self._job.trials
        if not self.searched_on:
            later = (i for i, one in enumerate(known) if one.origin == FROM_LADDER or (one.m or 0) < self.m)
            end = next(later, len(known))
            known = known[:end] + [one for one in known[end:] if one.origin == FROM_LADDER]
        return [trial for trial in known if trial.m == self.m]

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Commit a trial of this row."""
        self._job.add(dataclasses.replace(trial, m=self.m), artifact)

    def why_quarantined(self, config: Config, today: Provenance) -> str | None:
        """Why a config is not to be tried."""
        return self._job.context.recorder.why_quarantined(config, today)

    def quarantine(self, trial: Trial) -> None:
        """Quarantine the config of a trial of this row."""
        self._job.context.recorder.quarantine(dataclasses.replace(trial, m=self.m))

    def set_progress(self, progress: JobProgress) -> None:
        """Publish the progress of this row as that of the job."""
        self._job.row_progress(self.m, progress)
