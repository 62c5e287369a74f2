"""Results that leave one store and enter another: one JSON object a line.

A ``job`` line comes before the ``trial`` lines of that job, an ``artifact`` line before the ``best`` line
that needs it. Ids of jobs are unique over all stores, so a trial is known by its job and number wherever it
comes from: importing is a union, and importing twice changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from tilewright.device import DeviceKind
from tilewright.trial import Outcome
from tilewright.wire.requests import FamilyName, KeyName, ProblemFields
from tilewright.wire.results import BaselineView, ConfigView, ProvenanceView, ResourcesView, TimingView

JobKey = Annotated[str, Field(pattern="^[0-9a-f]{32}$", max_length=32)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", max_length=64)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Small = Annotated[int, Field(ge=0, le=2**31 - 1)]
Word = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]*$", max_length=16)]
Text = Annotated[str, Field(max_length=100_000)]


class Format(StrEnum):
    """``ndjson`` is whole and can be imported; ``t4`` is the auto-tuning community's results format."""

    NDJSON = "ndjson"
    T4 = "t4"


class ExportQuery(BaseModel):
    """``GET /trials``: which results, and how they are written.

    Attributes:
        device_class, family: only these; all unless given.
        since: only jobs that ended at this time or later.
        artifacts: the winners' kernels too, without which a winner cannot be served elsewhere.
    """

    model_config = ConfigDict(extra="forbid")

    format: Format = Format.NDJSON
    device_class: KeyName | None = None
    family: FamilyName | None = None
    since: AwareDatetime | None = None
    artifacts: bool = True

    @field_validator("since", mode="before")
    @classmethod
    def _written_out(cls, value: object) -> object:
        # NOTE: pydantic takes numbers, also as text, for seconds since 1970, which is no date-time of the
        # document.
        if value is None or isinstance(value, datetime) or (isinstance(value, str) and ":" in value):
            return value
        raise ValueError("give a date and time with its zone, such as 2026-01-31T12:00:00Z")


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class DeviceFields(_Line):
    """A :class:`tilewright.DeviceSpec` on the wire."""

    kind: DeviceKind
    arch: KeyName
    name: Annotated[str, Field(max_length=200)]
    units: Small
    memory_bytes: Annotated[int, Field(ge=0, le=2**62)]
    l2_bytes: Annotated[int, Field(ge=0, le=2**62)]
    smem_per_block: Small = 0
    smem_per_unit: Small = 0
    memory_gbps: Small = 0
    clock_mhz: Small = 0
    power_watts: Small = 0
    mig: Annotated[str, Field(max_length=32)] = ""


class JobLine(_Line):
    """A job that has ended."""

    kind: Literal["job"] = "job"
    id: JobKey
    problem: ProblemFields
    device: DeviceFields
    families: list[FamilyName]
    max_trials: Small
    max_seconds: Seconds
    seed: Small
    status: Literal["succeeded", "failed", "cancelled"]
    error: Text | None = None
    created: AwareDatetime
    started: AwareDatetime | None = None
    finished: AwareDatetime


class TrialLine(_Line):
    """A trial of a job; fields as in :class:`tilewright.trial.Trial`."""

    kind: Literal["trial"] = "trial"
    job: JobKey
    number: Small
    config: ConfigView
    outcome: Outcome
    message: Text = ""
    timing: TimingView | None = None
    artifact: Sha256 | None = None
    resources: ResourcesView | None = None
    provenance: ProvenanceView | None = None
    compile_s: Seconds = 0.0
    check_s: Seconds = 0.0
    measure_s: Seconds = 0.0
    origin: Word = "search"
    repeatable: bool | None = None
    created: AwareDatetime


class ArtifactLine(_Line):
    """A compiled kernel; ``data`` is base64."""

    kind: Literal["artifact"] = "artifact"
    digest: Sha256
    data: str


class BestLine(_Line):
    """A winner; fields as in :class:`tilewright.trial.BestConfig`."""

    kind: Literal["best"] = "best"
    problem: ProblemFields
    device_class: KeyName
    arch: KeyName
    config: ConfigView
    artifact: Sha256
    timing: TimingView
    ties: list[ConfigView]
    baseline: BaselineView
    speedup: Positive
    speedup_low: Positive
    speedup_high: Positive
    confidence: Positive
    provenance: ProvenanceView
    resources: ResourcesView
    job_id: JobKey | None = None
    repeatable: bool | None = None
    created: AwareDatetime


Line = Annotated[JobLine | TrialLine | ArtifactLine | BestLine, Field(discriminator="kind")]


class Counts(BaseModel):
    """How many of each."""

    jobs: int = 0
    trials: int = 0
    artifacts: int = 0
    best: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            jobs=self.jobs + other.jobs,
            trials=self.trials + other.trials,
            artifacts=self.artifacts + other.artifacts,
            best=self.best + other.best,
        )


class ImportAnswer(BaseModel):
    """What was new, and what the store had already or had better."""

    added: Counts
    known: Counts
