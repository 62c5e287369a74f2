"""Results of other stores: what leaves this one, and how it enters another.

An export is one JSON object a line. The line of a job comes before those of its trials, the line of an
artifact before that of a winner that needs it; a signature covers the lines since the signature before. Ids
of jobs are unique over all stores and a job that has ended never changes, so merging is the union of jobs and
of their trials, and merging twice changes nothing. Results keep the import that brought them; those of an
import that no trusted key signed are not exported again.

Records of earlier releases are stored under current names, which the ``current_`` functions give.
"""

from __future__ import annotations

import dataclasses
import functools
from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.registry import FAMILIES, RENAMED
from tilewright.schema.codec import JobId, MaxLength, Sha256, Text, decode, encode
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.device import DeviceSpec
from tilewright.schema.entries import Import
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.trial import BestConfig, Trial
from tuner.store import entities, imports, jobs, records
from tuner.store.database import StoreError, insert_new
from tuner.store.models import JobRow
from tuner.store.records import JobRecord, RowReader

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


@dataclasses.dataclass(frozen=True, slots=True)
class Signed:
    """The text of a signature over the lines since the signature before, see
    :attr:`tilewright.trust.About.EXPORT`."""

    signature: Annotated[str, MaxLength(300)]


Line = EndedJob | TrialOfJob | ArtifactData | Winner | Signed
_KINDS: dict[str, type[Line]] = {
    "job": EndedJob,
    "trial": TrialOfJob,
    "artifact": ArtifactData,
    "best": Winner,
    "signature": Signed,
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
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind: must be one of {', '.join(_KINDS)}, got {str(kind)[:80]!r}")
    return decode(_KINDS[kind], data)


def ended_jobs(
    session: Session, device_class: str | None, since: datetime | None, limit: int, after: str = ""
) -> list[JobRecord]:
    """Jobs of a device class or of all that ended, ``since`` then, by id from the one after ``after``; not
    those of imports that nobody trusted signed."""
    query = select(JobRow.id).where(JobRow.status.in_(FINAL), JobRow.id > after)
    query = query.where(imports.is_trusted(), imports.has_entered())
    query = query if device_class is None else query.where(JobRow.device_class == device_class)
    query = query if since is None else query.where(JobRow.finished >= since)
    reader = RowReader("job", lambda job_id: job_id, functools.partial(jobs.known, session))
    return reader.page(session, query.order_by(JobRow.id), limit, lambda job_id: JobRow.id > job_id)


def merge_job(session: Session, job: EndedJob, entering: Import) -> bool:
    """Store a job; False if the store has it already.

    Raises:
        StoreError: as :func:`need_ended`; or a trusted key signed it, and the store has it from an import
            that nobody trusted signed.
    """
    need_ended(session, job.id, entering)
    untrusted = select(JobRow.import_id).where(JobRow.id == job.id, ~imports.is_trusted())
    if entering.trusted and (import_id := session.scalar(untrusted)):
        # NOTE: it does not make way, because it could not be brought back if this import broke off.
        raise StoreError(
            f"job {job.id} is here from import {import_id}, which no trusted key signed; take that out by"
            f" 'tilewright delete import {import_id}' and import again"
        )
    if has_job(session, job.id):
        return False
    values = records.row_values(
        JobRow,
        job,
        problem_id=entities.ensure_problem(session, job.request.problem),
        device_id=entities.describe_device(session, job.device),
        device_class=job.device.device_class.id,
        options=current_request(job.request).options,
        error=None if job.error is None else records.text(job.error),
        attempt=1,
        cancel_requested=False,
        import_id=entering.id,
    )
    is_new = insert_new(session, JobRow, values)
    if is_new:
        jobs.add_rows(session, job.id, job.request)
    return is_new


def takes_trials(session: Session, job_id: str, entering: Import) -> bool:
    """Whether trials of an import may join a job: it is no job of this store, and is as trusted as they."""
    query = select(JobRow.import_id, imports.is_trusted()).where(JobRow.id == job_id)
    row = session.execute(query).one_or_none()
    return row is None or (row[0] is not None and bool(row[1]) is entering.trusted)


def has_job(session: Session, job_id: str) -> bool:
    """Whether a job is here."""
    return session.scalar(select(JobRow.id).where(JobRow.id == job_id)) is not None


def need_ended(session: Session, job_id: str, entering: Import) -> None:
    """Return unless a job is of another import that is on its way in or out, and so may be taken back.

    Raises:
        StoreError: it is.
    """
    ended = imports.has_entered() | (JobRow.import_id == entering.id)
    if session.scalar(select(JobRow.id).where(JobRow.id == job_id, ~ended)):
        raise StoreError(
            f"job {job_id} belongs to another import, which is on its way in or being deleted; try again when"
            " it is done"
        )


def is_of(session: Session, job_id: str, import_id: str) -> bool:
    """Whether a job is one of an import."""
    return session.scalar(select(JobRow.import_id).where(JobRow.id == job_id)) == import_id
