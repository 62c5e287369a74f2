"""The devices that help a job: which trials they have, and what becomes of those that do not come back."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterator

from tilewright.artifact import Artifact
from tilewright.schema.trial import Outcome, Trial
from tuner.job.context import JobContext
from tuner.job.progress import ProgressTracker, timed
from tuner.job.slots import Slot, SlotState, TrialTask
from tuner.search.search import Proposal

SLOTS = 4  # of each helper: while it measures one trial, others compile
MOST_AWAY = 12  # trials with helpers at once: a search that waits for more learns too little from each
ANCHOR_S = 20.0  # after which a device measures the anchor again
_KEPT = 3  # measurements of the anchor, of which the median counts
_LOOK_S = 0.5  # between two looks for a first helper
_SHORTEST_S = 0.2  # that a trial counts as taking


class AnchorTimes:
    """The time of one kernel on one device, measured again every 20 s."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_KEPT)
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether it is to be measured."""
        return time.monotonic() >= self._due

    @property
    def median_us(self) -> float:
        """The median of the last three measurements, in microseconds."""
        return statistics.median(self._times)

    def add(self, trial: Trial) -> None:
        """Count a measurement."""
        self._times.append(timed(trial).median_us)
        self._due = time.monotonic() + ANCHOR_S

    def again(self, context: JobContext, artifact: Artifact) -> bool:
        """Measure the kernel if that is due; False if it has no time yet."""
        if self.due:
            self._due = time.monotonic() + ANCHOR_S
            result = context.trial(artifact, None)
            if result.outcome is Outcome.OK and result.timing:
                self._times.append(result.timing.median_us)
        return bool(self._times)


@dataclasses.dataclass(slots=True)
class _Away:
    """A proposal with a helper, the slot that it is in, and since when it has this state."""

    proposal: Proposal
    slot: Slot
    since: float


class Helpers:
    """The helpers of one search, as the loop of the job sees them; without a board there are never any.

    Helpers get trials once a kernel of the job has run on the job's own device: it relates their times to
    this device. A trial is taken back if its helper died, left, or keeps the job waiting at its end. Its slot
    is then deleted, so that a late answer is ignored, and the job's own device runs the trial.
    """

    def __init__(self, context: JobContext, tracker: ProgressTracker) -> None:
        self._context, self._board, self._tracker = context, context.board, tracker
        self._away: dict[int, _Away] = {}
        self._free: list[Slot] = []
        self._next_look = 0.0
        self._anchor: Artifact | None = None
        self._times = AnchorTimes()
        self._taken_back: list[Proposal] = []

    @property
    def away(self) -> int:
        """How many trials helpers have."""
        return len(self._away)

    @property
    def depth(self) -> int:
        """How many proposals may be open in addition, for helpers."""
        return min(MOST_AWAY, len(self._away) + len(self._free)) if self._ready else 0

    @property
    def load(self) -> int | None:
        """How many trials the helper with the fewest has, which gets the next one; None if no helper takes
        one."""
        return min((self._load(slot) for slot in self._free), default=None) if self._ready else None

    def look(self) -> Iterator[tuple[Proposal, Trial, Artifact | None]]:
        """Yield the proposals that helpers answered since the last look, with their trials and kernels."""
        now = time.monotonic()
        if self._board is None or now < self._next_look:
            return
        slots = self._board.look()
        self._next_look = now if slots else now + _LOOK_S
        self._free = []
        there = {slot.id: slot for slot in slots}
        for slot_id in self._away.keys() - there.keys():
            self._taken_back.append(self._away.pop(slot_id).proposal)
        lost = [slot for slot in slots if slot.state is SlotState.RETURNED or slot.lost]
        self._take_back([slot for slot in lost if slot.state is not SlotState.DONE])
        for slot in slots:
            away = self._away.get(slot.id)
            if away is not None and (slot.turn, slot.state) == (away.slot.turn, SlotState.DONE):
                del self._away[slot.id]
                if slot.trial:
                    yield away.proposal, slot.trial, self._kernel(slot.trial)
            elif away is not None and slot.state is not away.slot.state:
                away.slot, away.since = slot, now
            if slot.state in (SlotState.WANTED, SlotState.DONE) and not slot.lost:
                self._free.append(slot)
        if lost:
            self._board.withdraw([slot for slot in lost if slot.state is SlotState.DONE])

    def offer(self, proposal: Proposal) -> bool:
        """Give a proposal to the helper that has the fewest; False if it left."""
        if self._board is None or self._anchor is None:
            return False
        slot = min(self._free, key=self._load)
        self._free.remove(slot)
        self._times.again(self._context, self._anchor)
        task = TrialTask(
            number=proposal.number,
            config=proposal.config,
            origin=proposal.origin,
            problem=self._context.problem,
            incumbent_us=self._tracker.incumbent_us,
            anchor=self._anchor.digest,
            anchor_us=self._times.median_us,
        )
        filled = self._board.offer(slot, task)
        if filled:
            self._away[slot.id] = _Away(proposal, filled, time.monotonic())
        return filled is not None

    def hurry(self) -> None:
        """Take back one trial that has waited for its start, or has run, for longer than a trial takes. A
        trial that was not begun goes first; among equals, the one with the highest number."""
        now, trial_s = time.monotonic(), self._trial_s()
        late = [one for one in self._away.values() if now - one.since > trial_s]
        late.sort(key=lambda one: (one.slot.state is SlotState.RUNNING, -one.proposal.number))
        self._take_back([one.slot for one in late[:1]])

    def drop(self) -> None:
        """Take back all trials; nobody runs them."""
        self._take_back([one.slot for one in self._away.values()])
        self._taken_back.clear()

    def taken_back(self) -> list[Proposal]:
        """The proposals taken back since the last call; the job's own device runs them."""
        found, self._taken_back = self._taken_back, []
        return found

    def end(self) -> None:
        """Have the helpers wait for the next search of the job, if there are any."""
        if self._board is not None and (self._away or self._free):
            self._away, self._free = {}, []
            self._board.empty()

    @property
    def _ready(self) -> bool:
        """Whether an anchor is known: the best kernel so far that ran here, which relates other devices to
        this one."""
        if self._anchor is None and self._free:
            ran = (one for one in self._tracker.trials if one.outcome is Outcome.OK and one.anchor is None)
            here = [one for one in ran if one.artifact in self._tracker.artifacts]
            best = min(here, key=lambda one: timed(one).median_us, default=None)
            if best:
                self._anchor = self._tracker.artifacts[str(best.artifact)]
                self._times.add(best)
        return self._anchor is not None

    def _load(self, slot: Slot) -> int:
        return Counter(one.slot.helper for one in self._away.values())[slot.helper]

    def _take_back(self, slots: list[Slot]) -> None:
        if self._board is None or not slots:
            return
        for slot in self._board.withdraw(slots):
            if away := self._away.pop(slot.id, None):
                self._taken_back.append(away.proposal)

    def _kernel(self, trial: Trial) -> Artifact | None:
        """The kernel of a trial that may win."""
        if self._board is None or trial.artifact is None or trial.outcome is not Outcome.OK:
            return None
        return self._board.kernel(trial.artifact)

    def _trial_s(self) -> float:
        took = [one.compile_s + one.check_s + one.measure_s for one in self._tracker.trials]
        return max(_SHORTEST_S, statistics.median(took) if took else 0.0)


def adopt(context: JobContext) -> None:
    """Commit what helpers answered to an earlier claim of the job that ended before it could do so."""
    if context.board is None or not context.board.resumed:
        return
    context.board.withdraw_earlier()
    inherited = context.board.inherited()
    trials = context.recorder.trials() if inherited else []
    for trial in inherited:
        if all((trial.m, trial.config) != (one.m, one.config) for one in trials):
            # On a ladder the numbers of a row are not those of the job; else a claim without helpers may
            # have used the number since.
            if trial.m is not None or any(one.number == trial.number for one in trials):
                trial = dataclasses.replace(trial, number=max((one.number for one in trials), default=-1) + 1)
            context.recorder.add_trial(trial, None)
            trials.append(trial)
    context.board.forget_earlier()
