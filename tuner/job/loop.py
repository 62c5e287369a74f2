"""The loop of a tuning job: propose, build, measure and record trials until a limit ends the search."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.job import TuneRequest
from tilewright.schema.trial import Outcome, Trial
from tuner.job.context import JobContext
from tuner.job.helpers import Helpers
from tuner.job.progress import ProgressTracker, timed
from tuner.search.search import DEPTH, INITIAL, MEASURED, Proposal, Search
from tuner.workers.builder import Compiled

BUDGET = "budget spent"
TIME = "time is up"
EXHAUSTED = "every valid config was tried"
FAILURES = "too many configs failed"
CANCELLED = "cancelled"
LOOK_BACK = 30
SETTLED = 20


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

    ``expected`` is the gain that a model expects of the next trial, None without one. A model ends no search
    that found a better config within the last 20 trials: the fewer it knows, the more often it errs. A search
    that began with initial configs ends by these trials alone: on recorded spaces models go on to expect
    gains over such a start that do not come.
    """
    if not request.min_gain_per_s:
        return None
    settled = _settled(trials)
    if settled and any(trial.origin == INITIAL for trial in trials):
        return f"none of the last {SETTLED} trials is faster"
    gain = gain_per_s(trials, expected)
    if gain is None or gain >= request.min_gain_per_s:
        return None
    if expected is not None and not settled:
        return None
    source = (
        f"the last {LOOK_BACK} trials gained" if expected is None else "the next trial is expected to gain"
    )
    return f"{source} {gain:.2%} per device second, less than {request.min_gain_per_s:.2%}"


def _settled(trials: Sequence[Trial]) -> bool:
    measured = [trial for trial in trials if trial.timing is not None]
    before, now = _best_us(measured[:-SETTLED]), _best_us(measured)
    return before is not None and before == now


def _best_us(trials: Sequence[Trial]) -> float | None:
    times = [trial.timing.median_us for trial in trials if trial.outcome is Outcome.OK and trial.timing]
    return min(times, default=None)


def why_outdated(config: Config, context: JobContext) -> str | None:
    """The reason this release finds a recorded config invalid, or None."""
    family = FAMILIES.get(config.family)
    if family is None:
        return f"there is no family {config.family}"
    return family.why_invalid(family.completed(config), context.problem, context.device)


def of_today(trial: Trial, context: JobContext) -> Trial:
    """A recorded trial, as ``invalid`` if this release finds its config invalid. An invalid trial cannot win,
    so it is neither the best so far nor a part of the budget."""
    reason = why_outdated(trial.config, context) if trial.outcome in MEASURED else None
    if reason is None:
        return trial
    return dataclasses.replace(trial, outcome=Outcome.INVALID, message=reason, timing=None)


Ahead = dict[Config, Future[Compiled]]  # compilations that have begun, by config
ASKS_PER_TRIAL = 4
_POLL_S = 0.1
_HELPERS_POLL_S = 0.02


class Loop:
    """Compiles ahead of the device, and measures proposals in the order in which they were asked for.

    An open proposal has a running compilation, and a recorded one a trial that an interrupted run committed.
    Other proposals are with helpers (:mod:`tuner.job.helpers`); the search learns their results as they
    arrive.
    """

    def __init__(
        self,
        context: JobContext,
        search: Search,
        tracker: ProgressTracker,
        first: Sequence[Config] = (),
        ahead: Ahead | None = None,
    ) -> None:
        """The search chooses after ``first``; ``ahead`` are compilations that have begun."""
        self._context = context
        self._search = search
        self._tracker = tracker
        self._helpers = Helpers(context, tracker)
        known = [of_today(trial, context) for trial in context.recorder.trials()]
        self._known = {trial.number: trial for trial in known}  # which the search did not propose again yet
        self._to_tell = deque(self._known)
        # NOTE: helpers leave gaps between the numbers of an interrupted run, which must not fill the depth.
        self._gaps = max(self._known, default=-1) + 1 - len(self._known)
        self._recorded: dict[int, tuple[Proposal, Trial]] = {}
        self._open: deque[tuple[Proposal, Future[Compiled]]] = deque()
        done = {trial.config for trial in known}
        self._first = deque(config for config in first if config not in done)
        self._ahead = ahead or {}

    def run(self) -> None:
        """Run until the budget is spent, the space is exhausted, the gain is too small or the job is
        cancelled.

        The tracker stores the reason.
        """
        try:
            if not self._known:
                self._tracker.publish("search")
            self._search.reserve(trial.config for trial in self._known.values())
            self._list_ahead()
            self._refill()
            while self._busy and not self._context.cancelled.is_set():
                self._step()
                self._refill()
            self._tracker.stopped = self._why_ended()
            if not self._context.cancelled.is_set():  # a later claim takes over what was answered
                self._helpers.end()
        finally:
            for work in (*(work for _, work in self._open), *self._ahead.values()):
                work.cancel()

    def _list_ahead(self) -> None:
        """List the valid configs while the first ones are compiled and tried, unless these spend the budget.

        On the host before: it would run on the cores being measured.
        """
        if self._on_host:
            self._search.list_configs()
        elif not 0 < self._search.budget <= len(self._first):
            threading.Thread(target=self._search.list_configs, name="list-configs", daemon=True).start()

    @property
    def _busy(self) -> bool:
        return bool(self._to_tell or self._open or self._helpers.away)

    def _refill(self) -> None:
        for proposal in self._helpers.taken_back():
            self._open.append((proposal, self._context.submit(proposal.config)))
        # NOTE: on the host, compilers would run on the cores being measured. So a whole batch is compiled
        # while nothing is measured.
        measuring = self._on_host and bool(self._recorded if self._to_tell else self._open)
        most = DEPTH + (self._gaps if self._to_tell else 0)
        self._search.depth = most + (0 if self._to_tell else self._helpers.depth)
        while self._may_ask():
            here, load = len(self._open) + len(self._recorded), self._helpers.load
            full = measuring or here >= most
            away = load is not None and not self._to_tell and (full or load < here)
            if (full and not away) or not self._ask(away):
                return

    def _may_ask(self) -> bool:
        search = self._search
        if not search.ready:
            return False
        if search.asked not in self._known and self._why_enough(search.in_flight) is not None:
            if not self._known:
                return False
            search.asked = min(self._known)  # the budget does not fill this gap
        return True

    def _why_enough(self, expected: int) -> str | None:
        """The reason to ask for no more, if ``expected`` open proposals will be measured; None to go on.
        Recorded trials that were not proposed again yet are part of the budget."""
        search, request = self._search, self._context.request
        recorded = sum(trial.outcome in MEASURED for trial in self._known.values())
        if search.measured + recorded + expected >= search.budget:
            return BUDGET
        if search.asked >= ASKS_PER_TRIAL * search.budget:
            return FAILURES
        if self._known or not search.asked:
            return None
        if self._time_is_up:
            return TIME
        with self._tracker.spending("search"):
            gain = search.expected_gain if request.min_gain_per_s else None
        return why_gain_ends(request, self._tracker.trials, gain)

    def _why_ended(self) -> str:
        if self._context.cancelled.is_set():
            return CANCELLED
        return self._why_enough(0) or EXHAUSTED

    def _ask(self, away: bool) -> bool:
        known = self._known.pop(self._search.asked, None)
        if known:
            self._recorded[known.number] = self._search.propose(known.config, known.origin), known
            return True
        with self._tracker.spending("search"):
            first = self._first.popleft() if self._first else None
            proposal = self._search.propose(first, INITIAL) if first else self._search.ask()
        if proposal and not (away and self._helpers.offer(proposal)):
            compiled = self._ahead.pop(proposal.config, None) or self._context.submit(proposal.config)
            self._open.append((proposal, compiled))
        return proposal is not None

    def _step(self) -> None:
        """Tell the search the next recorded trial. If there is none, take the answers of helpers, and finish
        the oldest open proposal if it is compiled."""
        if self._to_tell:
            self._replay_next()
            return
        for answered in self._helpers.look():
            self._finish(*answered)
        if self._open and self._is_compiled():
            proposal, work = self._open.popleft()
            compiled = work.result()
            with self._tracker.spending("trying"):
                trial = self._context.tried(proposal, compiled, self._tracker.incumbent_us)
            self._finish(proposal, trial, compiled.artifact)
        elif not self._open and self._helpers.away:
            self._await_helpers()

    def _replay_next(self) -> None:
        """Tell the search the first recorded trial that it has proposed again. If there is none, the search
        learns no more of them, and only the tracker replays those that are left."""
        number = next((number for number in self._to_tell if number in self._recorded), None)
        if number is None:  # the search has no proposals left in between: what follows may still win
            for trial in self._known.values():
                self._tracker.replay(trial)
            self._known.clear()
            self._to_tell.clear()
        else:
            self._to_tell.remove(number)
            proposal, trial = self._recorded.pop(number)
            self._tracker.replay(trial)
            self._tell(proposal, trial)
        if not self._to_tell:
            self._tracker.publish("search")

    def _finish(self, proposal: Proposal, trial: Trial, artifact: Artifact | None) -> None:
        self._tracker.add(trial, artifact)
        self._tracker.publish("search")
        self._tell(proposal, trial)

    def _tell(self, proposal: Proposal, trial: Trial) -> None:
        value_us = timed(trial).median_us if trial.outcome in MEASURED else None
        with self._tracker.spending("search"):
            self._search.tell(proposal, trial.outcome, value_us)

    def _is_compiled(self) -> bool:
        """Whether the oldest compilation is finished, on the host its whole batch; waits a moment for it."""
        started, batch = time.monotonic(), [work for _, work in self._open]
        waiting = batch if self._on_host else batch[:1]
        poll_s = _HELPERS_POLL_S if self._helpers.away else _POLL_S
        finished = not futures.wait(waiting, timeout=poll_s).not_done
        self._tracker.spend("idle", time.monotonic() - started)
        return finished

    def _await_helpers(self) -> None:
        """Wait a moment for answers, with nothing left to do here."""
        if self._time_is_up:
            self._helpers.drop()
        else:
            self._helpers.hurry()
        if self._helpers.away:
            self._context.cancelled.wait(_HELPERS_POLL_S)
            self._tracker.spend("idle", _HELPERS_POLL_S)

    @property
    def _time_is_up(self) -> bool:
        limit = self._context.request.max_seconds
        return bool(limit) and self._tracker.elapsed_s >= limit

    @property
    def _on_host(self) -> bool:
        return self._context.device.kind == "host"
