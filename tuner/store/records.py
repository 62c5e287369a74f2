"""What the store gives back: plain data, detached from the database."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tilewright.device import DeviceSpec
from tilewright.trial import BestConfig
from tuner.job import Progress, TuneRequest


class JobStatus(StrEnum):
    """Life of a job; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Nothing follows this status."""
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


@dataclasses.dataclass(frozen=True, slots=True)
class JobRecord:
    """A job; times are aware UTC.

    Attributes:
        id: 32 hex digits that sort by submission.
        request, device, device_class: what is tuned, and for which device.
        status: where it stands.
        progress: as last reported; None before the first report.
        error: why it failed; None otherwise.
        cancel_requested: the running job is to stop soon.
        owner: who claimed it last; None before.
        attempt: how often it was claimed.
        created, started, finished: None where it has not come to that; ``started`` is of the last claim.
    """

    id: str
    request: TuneRequest
    device: DeviceSpec
    device_class: str
    status: JobStatus
    progress: Progress | None
    error: str | None
    cancel_requested: bool
    owner: str | None
    attempt: int
    created: datetime
    started: datetime | None
    finished: datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened to a job; ``id`` grows with time, over all jobs."""

    id: int
    job_id: str
    kind: str
    data: dict[str, Any]
    created: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device that was seen, first and last at aware UTC times."""

    spec: DeviceSpec
    device_class: str
    first_seen: datetime
    last_seen: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBest:
    """A winner as kept; ``id`` is stable for its problem and device class, ``created`` is of its race."""

    id: int
    best: BestConfig
    created: datetime


def utc_now() -> datetime:
    """The time now, aware."""
    return datetime.now(UTC)
