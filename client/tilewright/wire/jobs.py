"""Tuning jobs on the wire."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from tilewright.schema.codec import gathered
from tilewright.schema.config import Config
from tilewright.schema.config_set import Speedup
from tilewright.schema.job import JobProgress, JobStatus, SearchOptions
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Trial
from tilewright.wire.catalog import ProblemDocument
from tilewright.wire.results import ArtifactLink, BestConfigView, speedup_of


class LadderRowView(BaseModel):
    """A row of an M ladder that was decided, as :class:`BestConfigView` in short.

    Attributes:
        median_us: of the winner in the race of its row; ``vendor_us`` is that of the vendor library there.
        regret: the winner's time over the best that was measured on the row, less 1: what the row pays for
            sharing its kernel with others.
    """

    m: int
    config: Config
    artifact: ArtifactLink
    median_us: float
    vendor_us: float
    speedup: Speedup
    verdict: str
    use_vendor: bool
    regret: float

    @classmethod
    def of(cls, best: BestConfig) -> LadderRowView:
        """The row of a winner."""
        told = {
            "m": best.problem.m,
            "artifact": ArtifactLink.to(best.artifact),
            "median_us": best.timing.median_us,
            "vendor_us": best.baseline.median_us,
            "speedup": speedup_of(best),
        }
        return cls(**gathered(cls, best, **told))


class LadderRange(BaseModel):
    """Rows of a ladder beside each other whose winner is the same kernel; ``regret`` is their largest."""

    first: int
    last: int
    config: Config
    artifact: ArtifactLink
    regret: float

    @classmethod
    def merged(cls, rows: Sequence[LadderRowView]) -> list[LadderRange]:
        """The ranges of rows, the smallest M first."""
        groups = itertools.groupby(rows, lambda row: row.artifact.digest)
        each = [list(group) for _, group in groups]
        return [
            cls(
                first=group[0].m,
                last=group[-1].m,
                config=group[0].config,
                artifact=group[0].artifact,
                regret=max(row.regret for row in group),
            )
            for group in each
        ]


class RowOutcome(BaseModel):
    """How a row of an M ladder stands: with a winner, failed with an error, waiting, or not tuned as its job
    ended before."""

    m: int
    outcome: Literal["tuned", "failed", "waiting", "not tuned"]
    error: str | None = None


class JobView(BaseModel, SearchOptions, frozen=True):
    """A tuning job.

    Attributes:
        device_class: the device class that it runs on.
        best: the result of the job's own race, once it succeeded.
        stored: the stored winner of the problem, if another job found it: before this job's race, or after
            it, or because this job's race was disturbed.
        ladder: every M of a ladder; ``problem`` has the largest. Empty for a job on one problem.
        rows: the rows of a ladder that were decided, the smallest M first.
        ranges: the same, with rows of one kernel merged.
        outcomes: how each row of a ladder stands; of an imported job, each one whose winner is in use
            here: nothing is known of the others.
        baseline_ratio: vendor time over winner time; None before the race.
        error: the reason if the job failed.
        waiting: what keeps a queued or running job from going on, such as a full disk.
        neighbours: until the job ends, the other processes on its device: those of clients that serve from it
            compute slower meanwhile, and a race beside them is disturbed.
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
    ladder: tuple[int, ...] = ()
    rows: list[LadderRowView] = []
    ranges: list[LadderRange] = []
    outcomes: list[RowOutcome] = []
    baseline_ratio: float | None = None
    best: BestConfigView | None = None
    stored: BestConfigView | None = None
    error: ProblemDocument | None = None
    waiting: str | None = None
    neighbours: list[str] = []
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
