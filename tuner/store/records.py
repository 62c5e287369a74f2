"""What the store gives back: plain data, detached from the database."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from tilewright.schema.codec import decode, encode
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, JobStatus, TuneRequest
from tilewright.schema.trial import BestConfig


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
    progress: JobProgress | None
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


R = TypeVar("R")


def canonical(data: dict[str, Any]) -> str:
    """The one JSON text of plain data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(data: dict[str, Any]) -> str:
    """SHA-256 in hex of plain data."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def request_digest(request: TuneRequest, device_class: str) -> str:
    """The digest of everything that makes two requests the same work."""
    return digest({"problem": request.problem.to_dict(), "device_class": device_class, **request.options})


def row_values(table: type[Any], record: object, **given: Any) -> dict[str, Any]:
    """What a row of a table holds of a record: a column for each field of its name, nested records as JSON,
    and the columns given."""
    names = (column.key for column in table.__table__.columns)
    found = {name: getattr(record, name) for name in names if name not in given and hasattr(record, name)}
    return {name: _json(value) for name, value in found.items()} | given


def of_row(kind: type[R], row: object, **given: Any) -> R:
    """The record that :func:`row_values` wrote; ``given`` are fields without a column, as plain data."""
    names = (field.name for field in dataclasses.fields(cast(type[Any], kind)))
    found = {name: getattr(row, name) for name in names if name not in given and hasattr(row, name)}
    return decode(kind, found | given)


def _json(value: Any) -> Any:
    return encode(value) if dataclasses.is_dataclass(value) or isinstance(value, tuple) else value


def text(message: str) -> str:
    """``message`` with what no database keeps (NUL, lone surrogates) escaped: compilers print anything."""
    return message.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
