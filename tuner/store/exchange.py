"""Results of other stores: what leaves this one, and how it enters another.

An export is one JSON object a line. The line of a job comes before those of its trials, the line of an
artifact before that of a winner that needs it. Ids of jobs are unique over all stores and a job that has
ended never changes, so merging is the union of jobs and of their trials, and merging twice changes nothing.

What an earlier release recorded is kept in today's words: the ``current_`` functions give them, to the
migrations of a database as well as to an import.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.registry import FAMILIES, RENAMED
from tilewright.schema.codec import JobId, Sha256, Text, decode, encode
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.trial import BestConfig, Trial
from tuner.store import entities, jobs, records
from tuner.store.database import insert_new
from tuner.store.models import DeviceRow, JobRow
from tuner.store.records import JobRecord

FINAL = tuple(status for status in JobStatus if status.final)
_FLAT = {"flat": True}
_ORIGINS = {"seed": "initial"}


def current_config(config: Config) -> Config:
    """A config with today's names of its family, its knobs and their values.

    One that cannot be completed, because a knob is unknown or its value was removed, keeps its knobs.
    """
    family = FAMILIES.get(RENAMED.get(config.family, config.family))
    return family.completed(config) if family else config


def current_trial(trial: Trial) -> Trial:
    """A trial with today's names of its config and its origin."""
    origin = _ORIGINS.get(trial.origin, trial.origin)
    return dataclasses.replace(trial, config=current_config(trial.config), origin=origin)


def current_best(best: BestConfig) -> BestConfig:
    """A winner with today's names of its config and of those that tie with it."""
    ties = tuple(current_config(config) for config in best.ties)
    return dataclasses.replace(best, config=current_config(best.config), ties=ties)


def current_set(config_set: ConfigSet) -> ConfigSet:
    """A snapshot with today's names of its configs, under the digest of what its release wrote."""
    entries = (dataclasses.replace(one, config=current_config(one.config)) for one in config_set.entries)
    return dataclasses.replace(config_set, entries=tuple(entries))


def current_request(request: TuneRequest) -> TuneRequest:
    """A request with today's names of the families."""
    families = tuple(sorted({RENAMED.get(name, name) for name in request.families}))
    return dataclasses.replace(request, families=families)


@dataclasses.dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that a store saw end; times are aware UTC.

    Raises:
        ValueError: its status is not final.
    """

    id: JobId
    request: TuneRequest = dataclasses.field(metadata=_FLAT)
    device: DeviceSpec
    status: JobStatus
    created: datetime
    finished: datetime
    started: datetime | None = None
    error: Text | None = None

    def __post_init__(self) -> None:
        if not self.status.final:
            raise ValueError(f"status: must be final, got {self.status}")


@dataclasses.dataclass(frozen=True, slots=True)
class TrialOfJob:
    """A trial, the job that it belongs to, and when it ended."""

    job: JobId
    trial: Trial = dataclasses.field(metadata=_FLAT)
    created: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class ArtifactData:
    """A compiled kernel; ``data`` is base64."""

    digest: Sha256
    data: str


@dataclasses.dataclass(frozen=True, slots=True)
class Winner:
    """A best config and when its race was."""

    best: BestConfig = dataclasses.field(metadata=_FLAT)
    created: datetime


Line = EndedJob | TrialOfJob | ArtifactData | Winner
_KINDS: dict[str, type[Line]] = {
    "job": EndedJob,
    "trial": TrialOfJob,
    "artifact": ArtifactData,
    "best": Winner,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_plain(line: Line) -> dict[str, Any]:
    """The JSON object of a line, without fields that are null."""
    plain = {"kind": _NAMES[type(line)], **encode(line)}
    return {name: value for name, value in plain.items() if value is not None}


def of_plain(data: Any) -> Line:
    """The inverse of :func:`to_plain`; also reads what earlier releases exported.

    Raises:
        ValueError, InvalidProblem: it is not a line of an export; the message names field and rule.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in _KINDS:
        raise ValueError(f"kind: must be one of {', '.join(_KINDS)}, got {str(kind)[:80]!r}")
    return decode(_KINDS[kind], data)


def ended_jobs(
    session: Session, device_class: str | None, since: datetime | None, limit: int, after: str = ""
) -> list[JobRecord]:
    """Jobs of a device class or of all that ended, ``since`` then, by id from the one after ``after``."""
    query = select(JobRow.id).where(JobRow.status.in_(FINAL), JobRow.id > after)
    query = query if device_class is None else query.where(JobRow.device_class == device_class)
    query = query if since is None else query.where(JobRow.finished >= since)
    ids = session.scalars(query.order_by(JobRow.id).limit(limit)).all()
    return [job for job_id in ids if (job := jobs.get(session, job_id))]


def merge_job(session: Session, job: EndedJob) -> bool:
    """Keep a job; False where it is here already."""
    if has_job(session, job.id):
        return False
    values = records.row_values(
        JobRow,
        job,
        problem_id=entities.ensure_problem(session, job.request.problem),
        device_id=_device(session, job.device, job.created),
        device_class=job.device.device_class.id,
        options=current_request(job.request).options,
        error=None if job.error is None else records.text(job.error),
        attempt=1,
        cancel_requested=False,
    )
    return insert_new(session, JobRow, values)


def has_job(session: Session, job_id: str) -> bool:
    """Whether a job is here."""
    return session.scalar(select(JobRow.id).where(JobRow.id == job_id)) is not None


def _device(session: Session, spec: DeviceSpec, seen: datetime) -> int:
    text = records.canonical(spec.to_dict())
    values = {"spec": text, "device_class": spec.device_class.id, "arch": spec.arch}
    insert_new(session, DeviceRow, {**values, "first_seen": seen, "last_seen": seen})
    return session.scalars(select(DeviceRow.id).where(DeviceRow.spec == text)).one()
