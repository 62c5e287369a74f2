"""``ProgressTracker``: trials of a job, the seconds it spent, and its progress."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any

from tilewright.artifact import Artifact
from tilewright.schema.job import JobProgress, TuneRequest
from tilewright.schema.trial import Outcome, Timing, Trial
from tuner.job.context import TrialRecorder
from tuner.search.search import MEASURED, Search

FROM_LADDER = "ladder"  # origin of trials of kernels that other rows of a ladder proposed
# Of the wall clock of a job; each has its seconds in JobProgress.
PHASES = ("open", "idle", "check", "measure", "transfer", "search", "store", "race")
_log = logging.getLogger("tilewright.job")


class ProgressTracker:
    """Trials of one job, including those of an interrupted run, and the seconds that this run spent.

    Check, measure, idle, search, race, open, transfer and store are intervals of the wall clock that never
    overlap. The rest of ``elapsed_s`` goes into first configs of ladders, a job's end and this process. Those
    of helpers, side by side with them, do not count.
    ``compile_s`` is the sum over compilers, which run in parallel with each other and with the device.

    Attributes:
        trials: in the order they finished.
        artifacts: kernels measured in this run, by digest.
        stopped: the reason why the search ended; None while it runs.
    """

    def __init__(
        self,
        request: TuneRequest,
        recorder: TrialRecorder,
        search: Search,
        started: float,
        open_s: float = 0.0,
    ) -> None:
        """``started`` is the start of this run on the monotonic clock; opening the search took ``open_s``."""
        self._request = request
        self._recorder = recorder
        self._search = search
        self._started = started
        self._replayed = 0
        self._compile_s = 0.0
        self._spent_s = dict.fromkeys((*PHASES, "trying"), 0.0) | {"open": open_s}
        self.stopped: str | None = None
        self.trials: list[Trial] = []
        self.artifacts: dict[str, Artifact] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since this run started."""
        return time.monotonic() - self._started

    @property
    def comparable(self) -> list[Trial]:
        """The measured trials whose times compare: those measured by the method of the latest trial that the
        search proposed. A job that another release began has times of two methods."""
        measured = [trial for trial in self.trials if trial.timing is not None]
        proposed = [trial for trial in measured if trial.origin != FROM_LADDER] or measured
        return [trial for trial in measured if timed(trial).method == timed(proposed[-1]).method]

    @property
    def incomparable(self) -> list[Trial]:
        """The measured trials of other methods."""
        methods = {timed(trial).method for trial in self.comparable}
        return [trial for trial in self.trials if trial.timing and trial.timing.method not in methods]

    @property
    def best(self) -> Trial | None:
        """The fastest complete trial."""
        complete = [trial for trial in self.comparable if trial.outcome is Outcome.OK]
        return min(complete, key=lambda trial: timed(trial).median_us, default=None)

    @property
    def incumbent_us(self) -> float | None:
        """The median of the fastest complete trial, in microseconds."""
        return timed(self.best).median_us if self.best else None

    @property
    def measured(self) -> int:
        """The number of trials that count towards the budget."""
        return sum(trial.outcome in MEASURED for trial in self.trials)

    def replay(self, trial: Trial) -> None:
        """Count a trial that an earlier run committed."""
        self._replayed += trial.outcome in MEASURED
        self.trials.append(trial)

    def clear(self) -> None:
        """Drop the trials; kernels and seconds stay."""
        self.trials, self._replayed = [], 0

    def spend(self, phase: str, seconds: float) -> None:
        """Add seconds of one of ``PHASES``, or of ``trying`` a trial that is added afterwards."""
        self._spent_s[phase] += seconds

    @contextlib.contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Count the time of the block as that of a phase, as in :meth:`spend`."""
        began = time.monotonic()
        yield
        self.spend(phase, time.monotonic() - began)

    def add(self, trial: Trial, artifact: Artifact | None) -> None:
        """Commit a trial."""
        with self.spending("store"):
            self._recorder.add_trial(trial, artifact)
        self.trials.append(trial)
        if artifact is not None and trial.outcome is Outcome.OK:
            self.artifacts[artifact.digest] = artifact
        self._compile_s += trial.compile_s
        if trial.anchor is None:
            self.spend("check", trial.check_s)
            self.spend("measure", trial.measure_s)

    def publish(self, phase: str) -> None:
        """Publish the progress of the job."""
        best = self.best
        progress = JobProgress(
            phase=phase,
            measured=self.measured,
            planned=self._search.planned,
            valid_configs=self._search.size,
            failed=len(self.trials) - self.measured,
            best_us=self.incumbent_us,
            best_config=str(best.config) if best else None,
            elapsed_s=self.elapsed_s,
            eta_s=self._eta_s(phase),
            compile_s=self._compile_s,
            stopped=self.stopped,
        )
        seconds: dict[str, Any] = {f"{name}_s": spent for name, spent in self._phases_s().items()}
        progress = dataclasses.replace(progress, **seconds)
        with self.spending("store"):
            self._recorder.set_progress(progress)

    def log(self, job_id: str) -> None:
        """Log how the seconds of this run were spent."""
        known = self._phases_s()
        elapsed_s = self.elapsed_s
        known["other"] = elapsed_s - sum(known.values())
        parts = " + ".join(f"{name} {seconds:.2f}" for name, seconds in known.items())
        count, reason = len(self.trials), self.stopped
        _log.info("job %s: %d trials, %s; %s = %.2f s", job_id, count, reason, parts, elapsed_s)
        _log.info("job %s: compilers worked %.2f s side by side with that", job_id, self._compile_s)

    def _phases_s(self) -> dict[str, float]:
        """The seconds of each phase; what a trial takes beside check and measurement is transfer."""
        spent = self._spent_s
        transfer_s = max(0.0, spent["trying"] - spent["check"] - spent["measure"])
        return {phase: transfer_s if phase == "transfer" else spent[phase] for phase in PHASES}

    def _eta_s(self, phase: str) -> float | None:
        measured_now = self.measured - self._replayed
        if phase != "search" or not measured_now:
            return None
        left = (self._search.planned - self.measured) * self.elapsed_s / measured_now
        limit = self._request.max_seconds
        return max(0.0, min(left, limit - self.elapsed_s) if limit else left)


def timed(trial: Trial) -> Timing:
    """The timing of a measured trial.

    Raises:
        ValueError: the trial has none.
    """
    if trial.timing is None:
        raise ValueError(f"trial {trial.number} was not measured: {trial.outcome}")
    return trial.timing
