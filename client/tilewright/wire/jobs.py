"""Tuning jobs on the wire."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel

from tilewright.policy import Policy
from tilewright.wire.errors import ProblemDocument
from tilewright.wire.requests import ProblemFields
from tilewright.wire.results import BestConfigView, TrialView, View


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Nothing will change any more."""
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class ProgressView(View):
    """Where the search stands; seconds and microseconds.

    Attributes:
        phase: ``enumerate``, ``search``, ``race`` or ``done``.
        measured, planned: trials spent and granted.
        valid_configs: size of the searched space.
        failed: trials that ended badly.
        best_us, best_config: the best so far.
        elapsed_s, eta_s: seconds gone, and expected seconds to the end.
        compile_s, check_s, measure_s, idle_s, search_s, race_s: where the seconds went; idle is waiting
            for a compile, and compiles run side by side with all the others.
        stopped: why the search ended; None while it runs.
    """

    phase: str
    measured: int
    planned: int
    valid_configs: int
    failed: int
    best_us: float | None
    best_config: str | None
    elapsed_s: float
    eta_s: float | None
    compile_s: float
    check_s: float
    measure_s: float
    idle_s: float
    search_s: float = 0.0
    race_s: float = 0.0
    stopped: str | None = None


class JobView(BaseModel):
    """A tuning job.

    Attributes:
        device_class: what it runs on.
        best: the standing winner for the job's problem once the job succeeded; its ``job_id`` tells which
            job found it, as a weaker race does not take a better kernel away.
        baseline_ratio: vendor time over winner time; None before the race.
        error: why a failed job failed.
        links: self, trials, events, and artifact once there is a winner.
    """

    id: str
    status: JobStatus
    problem: ProblemFields
    families: list[str]
    max_trials: int
    max_seconds: float
    seed: int
    policy: Policy = Policy.STAGED
    min_gain_per_s: float = 0.0
    device_class: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    cancel_requested: bool
    progress: ProgressView | None
    baseline_ratio: float | None = None
    best: BestConfigView | None = None
    error: ProblemDocument | None = None
    links: dict[str, str]


class JobList(BaseModel):
    """A page of jobs, newest first; ``next`` is the cursor of the next page."""

    items: list[JobView]
    next: str | None = None


class TrialList(BaseModel):
    """A page of trials by number; ``next`` is the cursor of the next page."""

    items: list[TrialView]
    next: str | None = None
