"""The loop of a tuning job: propose, build, measure and record trials until a limit ends the search."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future

from kernels.registry import FAMILIES
from tilewright.schema.config import Config
from tilewright.schema.job import TuneRequest
from tilewright.schema.trial import Outcome, Trial
from tuner.job.context import JobContext
from tuner.job.progress import ProgressTracker, timed
from tuner.search.search import MEASURED, Proposal, Search
from tuner.workers.builder import Compiled

BUDGET = "budget spent"
TIME = "time is up"
EXHAUSTED = "every valid config was tried"
FAILURES = "too many configs failed"
CANCELLED = "cancelled"
LOOK_BACK = 30


def gain_per_s(trials: Sequence[Trial], expected: float | None = None) -> float | None:
    """The expected gain of the next trial per device second, as a fraction of the best time.

    With a model of the times it is the gain ``expected`` of the next trial over the mean device seconds of
    the last 30 trials. Without one, the past rate of these trials serves: a search gains less the longer it
    runs, so it errs on the side of going on. None before 30 measured trials have followed a complete one.
    """
    measured = [trial for trial in trials if trial.timing is not None]
    recent = measured[-LOOK_BACK:]
    seconds = sum((trial.check_s + trial.measure_s for trial in recent), 0.0)
    if expected is not None:
        return expected * len(recent) / seconds if seconds else None
    before = _best_us(measured[: -len(recent)])
    after = _best_us(measured)
    if len(recent) < LOOK_BACK or before is None or after is None:
        return None
    return math.log(before / after) / seconds if seconds else None


def why_gain_ends(request: TuneRequest, trials: Sequence[Trial], expected: float | None = None) -> str | None:
    """The reason to stop if the gain is below the request's ``min_gain_per_s``, or None.

    ``expected`` is the gain that a model expects of the next trial, None without one.
    """
    gain = gain_per_s(trials, expected) if request.min_gain_per_s else None
    if gain is None or gain >= request.min_gain_per_s:
        return None
    source = (
        f"the last {LOOK_BACK} trials gained" if expected is None else "the next trial is expected to gain"
    )
    return f"{source} {gain:.2%} per device second, less than {request.min_gain_per_s:.2%}"


def _best_us(trials: Sequence[Trial]) -> float | None:
    times = [trial.timing.median_us for trial in trials if trial.outcome is Outcome.OK and trial.timing]
    return min(times, default=None)


def why_outdated(config: Config, context: JobContext) -> str | None:
    """The reason if this release takes a recorded config for invalid."""
    family = FAMILIES.get(config.family)
    if family is None:
        return f"there is no family {config.family}"
    return family.why_invalid(family.completed(config), context.problem, context.device)


def of_today(trial: Trial, context: JobContext) -> Trial:
    """A recorded trial. If this release takes its config for invalid, the trial counts as invalid: it can
    not win, so it is neither the best so far nor a part of the budget."""
    reason = why_outdated(trial.config, context) if trial.outcome in MEASURED else None
    if reason is None:
        return trial
    return dataclasses.replace(trial, outcome=Outcome.INVALID, message=reason, timing=None)


ASKS_PER_TRIAL = 4
_POLL_S = 0.1


class Loop:
    """Compiles ahead of the device, and measures proposals in the order in which they were asked for.

    An open proposal has a running compilation, or a trial that an interrupted run recorded.
    """

    def __init__(self, context: JobContext, search: Search, tracker: ProgressTracker) -> None:
        self._context = context
        self._search = search
        self._tracker = tracker
        self._known = deque(of_today(trial, context) for trial in context.recorder.trials())
        self._open: deque[tuple[Proposal, Trial | Future[Compiled]]] = deque()

    def run(self) -> None:
        """Run until the budget is spent, the space is exhausted, the gain is too small or the job is
        cancelled.

        The tracker stores the reason.
        """
        try:
            if not self._known:
                self._tracker.publish("search")
            self._refill()
            while self._open and not self._context.cancelled.is_set():
                self._finish_oldest()
                self._refill()
            self._tracker.stopped = self._why_ended()
        finally:
            for _, work in self._open:
                if isinstance(work, Future):
                    work.cancel()

    def _refill(self) -> None:
        # NOTE: on the host, compilers would run on the cores being measured. So a whole batch is compiled
        # while nothing is measured.
        if self._on_host and self._open:
            return
        while self._may_ask() and self._ask():
            pass

    def _may_ask(self) -> bool:
        return self._search.ready and self._why_enough(self._search.in_flight) is None

    def _why_enough(self, expected: int) -> str | None:
        """The reason to ask for no more, if ``expected`` open proposals will be measured; None to go on."""
        search, request = self._search, self._context.request
        if search.measured + expected >= search.budget:
            return EXHAUSTED if search.budget == search.size else BUDGET
        if search.asked >= ASKS_PER_TRIAL * search.budget:
            return FAILURES
        if self._known or not search.asked:
            return None
        if request.max_seconds and self._tracker.elapsed_s >= request.max_seconds:
            return TIME
        gain = search.expected_gain if request.min_gain_per_s else None
        return why_gain_ends(request, self._tracker.trials, gain)

    def _why_ended(self) -> str:
        if self._context.cancelled.is_set():
            return CANCELLED
        return self._why_enough(0) or EXHAUSTED

    def _ask(self) -> bool:
        if self._known:
            known = self._known.popleft()
            self._open.append((self._search.replay(known.config, known.origin), known))
            return True
        with self._tracker.searching():
            proposal = self._search.ask()
        if proposal:
            self._open.append((proposal, self._context.submit(proposal.config)))
        return proposal is not None

    def _finish_oldest(self) -> None:
        proposal, work = self._open.popleft()
        if isinstance(work, Trial):
            trial = work
            self._tracker.replay(trial)
            if not self._known and not any(isinstance(later, Trial) for _, later in self._open):
                self._tracker.publish("search")
        else:
            compiled = self._compiled(work)
            if compiled is None:
                return
            trial = self._try(proposal, compiled)
            self._tracker.add(trial, compiled.artifact)
            self._tracker.publish("search")
        value_us = timed(trial).median_us if trial.outcome in MEASURED else None
        with self._tracker.searching():
            self._search.tell(proposal, trial.outcome, value_us)

    def _compiled(self, oldest: Future[Compiled]) -> Compiled | None:
        """The finished compilation, on the host after its whole batch; None if the job was cancelled."""
        batch = [work for _, work in self._open if isinstance(work, Future)] if self._on_host else []
        started = time.monotonic()
        while futures.wait([oldest, *batch], timeout=_POLL_S).not_done:
            if self._context.cancelled.is_set():
                oldest.cancel()
                return None
        self._tracker.idle(time.monotonic() - started)
        return oldest.result()

    def _try(self, proposal: Proposal, compiled: Compiled) -> Trial:
        trial = Trial(
            number=proposal.number,
            config=proposal.config,
            outcome=compiled.outcome,
            message=compiled.message,
            compile_s=compiled.seconds,
            origin=proposal.origin,
        )
        artifact, context = compiled.artifact, self._context
        if artifact is None:
            return trial
        incumbent_us, timeout_s = self._tracker.incumbent_us, context.trial_timeout_s
        result = context.bench.trial(artifact, context.problem, incumbent_us, timeout_s)
        return context.measured(trial, artifact, result)

    @property
    def _on_host(self) -> bool:
        return self._context.device.kind == "host"
