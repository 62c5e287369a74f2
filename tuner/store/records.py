"""Records of the store: plain data, detached from the database."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import ColumnElement, Row, Select
from sqlalchemy.orm import Session

from tilewright.errors import TilewrightError
from tilewright.schema.codec import decode, encode
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, JobStatus, TuneRequest
from tilewright.schema.kernel import Preconditions
from tilewright.schema.trial import BestConfig


@dataclasses.dataclass(frozen=True, slots=True)
class JobRecord:
    """A job; times are aware UTC.

    Attributes:
        id: 32 hex digits that sort by submission.
        request, device, device_class: what is tuned, and for which device.
        status: where it stands.
        progress: as last reported; None before the first report.
        result: what its final race found; None before, and of jobs of other stores or earlier releases.
        error: why it failed; None otherwise.
        cancel_requested: the running job is to stop soon.
        owner: who claimed it last; None before.
        attempt: how often it was claimed.
        created, started, finished: times of these steps; None before; ``started`` is of the last claim.
        import_id: the import of a job that ran elsewhere; None for one of this store.
    """

    id: str
    request: TuneRequest
    device: DeviceSpec
    device_class: str
    status: JobStatus
    progress: JobProgress | None
    result: BestConfig | None
    error: str | None
    cancel_requested: bool
    owner: str | None
    attempt: int
    created: datetime
    started: datetime | None
    finished: datetime | None
    import_id: str | None


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
    """A winner as kept; ``id`` is stable for its problem and device class, ``created`` is of its race, and
    ``import_id`` names the import of one that was raced elsewhere; ``drifted``: an idle device
    measured another time since."""

    id: int
    best: BestConfig
    created: datetime
    import_id: str | None = None
    drifted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingBest:
    """A winner of an import that waits to be built and raced here; ``queued`` once a device took it up."""

    id: int
    best: BestConfig
    queued: datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class StoredKernel:
    """What a config set tells of an artifact: its length and what it needs."""

    artifact_bytes: int
    preconditions: Preconditions


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


def winner(row: Any, problem: str) -> BestConfig:
    """The winner of a row, whose problem has the canonical text."""
    return of_row(BestConfig, row, problem=json.loads(problem), job_id=row.job_id or "")


def _json(value: Any) -> Any:
    return encode(value) if dataclasses.is_dataclass(value) or isinstance(value, tuple) else value


class Unreadable(TilewrightError):
    """A row that this release cannot read: a newer release wrote it, or it is damaged.

    Attributes:
        id: the row within its table.
        reason: the rule that it breaks.
    """

    def __init__(self, table: str, row_id: Any, error: Exception) -> None:
        self.id = row_id
        self.reason = str(error) or type(error).__name__
        super().__init__(f"this release cannot read {table} {row_id}: {self.reason}; upgrade this service")


Following = Callable[..., ColumnElement[bool]]
_log = logging.getLogger("tilewright.store")


@functools.lru_cache(maxsize=10_000)
def log_unreadable(message: str) -> None:
    """Log an unreadable row, once."""
    _log.warning("set aside: %s", message)


@dataclasses.dataclass(frozen=True, slots=True)
class RowReader(Generic[R]):
    """How the rows of a query become records.

    Attributes:
        table: what a row holds, for messages.
        id: the row within its table.
        record: the record of a row.
    """

    table: str
    id: Callable[..., Any]
    record: Callable[..., R]

    def one(self, *row: Any) -> R:
        """The record of a row.

        Raises:
            Unreadable: this release cannot read it.
        """
        try:
            return self.record(*row)
        except (TilewrightError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise Unreadable(self.table, self.id(*row), error) from error

    def readable(self, rows: Iterable[Row[*tuple[Any, ...]]]) -> list[R]:
        """The records of the rows that this release can read; the log names the others."""
        return [one for row in rows if not isinstance(one := self.tried(row), Unreadable)]

    def unreadable(self, rows: Iterable[Row[*tuple[Any, ...]]]) -> list[Unreadable]:
        """Why this release cannot read those of the rows that it cannot."""
        return [one for row in rows if isinstance(one := self.tried(row), Unreadable)]

    def page(
        self, session: Session, query: Select[*tuple[Any, ...]], limit: int | None, following: Following
    ) -> list[R]:
        """The first ``limit`` readable records of a query, or all: fewer come only at its end. ``following``
        gives the condition of the rows behind one."""
        found: list[R] = []
        while True:
            wanted = None if limit is None else limit - len(found)
            rows = session.execute(query.limit(wanted)).all()
            found += self.readable(rows)
            if wanted is None or len(rows) < wanted or len(found) == limit:
                return found
            query = query.where(following(*rows[-1]))

    def tried(self, row: Row[*tuple[Any, ...]]) -> R | Unreadable:
        """The record of a row; if this release cannot read it, why, which is logged too."""
        try:
            return self.one(*row)
        except Unreadable as error:
            log_unreadable(str(error))
            return error


def text(message: str) -> str:
    """``message`` with what no database keeps (NUL, lone surrogates) escaped: compilers print anything."""
    return message.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
