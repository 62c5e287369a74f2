"""What a tuning job is asked for, what it reports, and where it reports to."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from tilewright.artifact import Artifact
from tilewright.policy import Policy
from tilewright.problem import GemmProblem
from tilewright.trial import BestConfig, Trial


@dataclasses.dataclass(frozen=True, slots=True)
class TuneRequest:
    """A job.

    Attributes:
        problem: what to tune.
        families: kernel families to search; empty for all that support the problem.
        max_trials: measured trials (``ok`` and ``pruned``) to spend.
        max_seconds: wall-clock bound, 0 for none; the final race comes on top.
        seed: of every random choice of the search.
        policy: how to search.
        min_gain_per_s: the search ends where it gains less, as a share of the best time per second that
            the device is at work; 0 for never (:func:`tuner.stopping.gain_per_s`).
    """

    problem: GemmProblem
    families: tuple[str, ...] = ()
    max_trials: int = 100
    max_seconds: float = 0.0
    seed: int = 0
    policy: Policy = Policy.STAGED
    min_gain_per_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """Where a job stands.

    Attributes:
        phase: ``enumerate``, ``search``, ``race`` or ``done``.
        measured, planned: trials spent and granted.
        valid_configs: size of the searched space, over all families.
        failed: trials that ended in any other way.
        best_us, best_config: the best so far; None before the first.
        elapsed_s: seconds since the job (or its resumption) started.
        eta_s: expected seconds to the end; None before the first trial.
        compile_s, check_s, measure_s: where the seconds went.
        idle_s: seconds the device waited for a compile.
        search_s: seconds that choosing configs took.
        race_s: seconds of the final races.
        stopped: why the search ended; None while it runs.
    """

    phase: str
    measured: int
    planned: int
    valid_configs: int = 0
    failed: int = 0
    best_us: float | None = None
    best_config: str | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None
    compile_s: float = 0.0
    check_s: float = 0.0
    measure_s: float = 0.0
    idle_s: float = 0.0
    search_s: float = 0.0
    race_s: float = 0.0
    stopped: str | None = None


class Recorder(Protocol):
    """Where a job reports to and resumes from; each call commits before it returns."""

    def trials(self) -> list[Trial]:
        """Trials of this job that were already committed, by number."""

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Keep a finished trial, and its artifact where there is one."""

    def set_progress(self, progress: Progress) -> None:
        """Publish where the job stands."""

    def set_best(self, best: BestConfig) -> None:
        """Keep the winner of the final race."""
