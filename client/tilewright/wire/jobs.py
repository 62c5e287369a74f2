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
        device_class: the device class that it runs on.
        best: the result of the job's own race, once it succeeded.
        stored: the stored winner of the problem, if another job found it: before this job's race, or after
            it, or because this job's race was disturbed.
        baseline_ratio: vendor time over winner time; None before the race.
        error: the reason if the job failed.
        waiting: what keeps a queued or running job from going on, such as a full disk.
        import_id: the import of a job that ran elsewhere; None for one of this service.
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
    stored: BestConfigView | None = None
    error: ProblemDocument | None = None
    waiting: str | None = None
    import_id: str | None = None
    links: dict[str, str]


class UnreadableJob(BaseModel):
    """A job that this service cannot read, such as one with an option of a newer release; no device of this
    service runs it."""

    id: str
    detail: str


class JobList(BaseModel):
    """A page of jobs, newest first; ``next`` is the cursor of the next page. ``unreadable`` are those of the
    page that this service cannot read."""

    items: list[JobView]
    unreadable: list[UnreadableJob] = []
    next: str | None = None


class TrialList(BaseModel):
    """A page of trials by number; ``next`` is the cursor of the next page."""

    items: list[Trial]
    next: str | None = None
