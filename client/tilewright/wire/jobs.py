"""Tuning jobs on the wire."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from tilewright.schema.job import JobProgress, JobStatus, SearchOptions
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Trial
from tilewright.wire.catalog import ProblemDocument
from tilewright.wire.results import BestConfigView


class JobView(BaseModel, SearchOptions, frozen=True):
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
    problem: GemmProblem
    device_class: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    cancel_requested: bool
    progress: JobProgress | None
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

    items: list[Trial]
    next: str | None = None
