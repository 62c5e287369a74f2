"""Trust, export, import and the audit log; the lines of an export are in :mod:`tuner.store.exchange`."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from pydantic import AwareDatetime, BaseModel, ConfigDict, field_validator

from tilewright.schema.codec import FamilyName, JobId, KeyName
from tilewright.schema.config import Config
from tilewright.schema.config_set import Speedup
from tilewright.schema.entries import AuditRecord, Import, ImportCounts, RecordCounts, TrustedKey
from tilewright.schema.problem import GemmProblem


class TrustedKeyView(BaseModel, TrustedKey, frozen=True):
    """A public key whose signature makes the kernels and winners of an import run on this service."""


class TrustView(BaseModel):
    """``GET /trust``: the public key that this service signs with, and the keys that it trusts."""

    key: str
    trusted: list[TrustedKeyView]


class Format(StrEnum):
    """The format of an export: ``ndjson`` holds everything; ``t4`` is the format of the auto-tuning
    community."""

    NDJSON = "ndjson"
    T4 = "t4"


class ExportQuery(BaseModel):
    """``GET /trials``: the results to export, and their format.

    Attributes:
        device_class, family: results of these only; all unless given.
        since: results of jobs that ended at this time or later.
        artifacts: whether to include the kernels of the winners, which other services need to serve them.
    """

    model_config = ConfigDict(extra="forbid")

    format: Format = Format.NDJSON
    device_class: KeyName | None = None
    family: FamilyName | None = None
    since: AwareDatetime | None = None
    artifacts: bool = True

    @field_validator("since", mode="after")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        try:
            return value and value.astimezone(UTC)
        except OverflowError:
            raise ValueError("give a time in the years 1 to 9999 of UTC") from None

    @field_validator("since", mode="before")
    @classmethod
    def _written_out(cls, value: object) -> object:
        # NOTE: pydantic reads numbers, also in text, as seconds since 1970, which is no date-time by the
        # schema.
        if value is None or isinstance(value, datetime) or (isinstance(value, str) and ":" in value):
            return value
        raise ValueError("give a date and time with its zone, such as 2026-01-31T12:00:00Z")


class Counts(BaseModel, RecordCounts, frozen=True):
    """The number of each kind of record."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields})


class ImportQuery(BaseModel):
    """``POST /trials``: the import that these lines belong to, 32 hex digits; a new one unless given."""

    model_config = ConfigDict(extra="forbid")

    import_id: JobId | None = None


class WaitingView(BaseModel):
    """A winner of an import that waits to be built and raced here; its figures are those of another store."""

    problem: GemmProblem
    device_class: str
    config: Config
    median_us: float
    speedup: Speedup
    queued: datetime | None


class ImportView(BaseModel, ImportCounts, Import, frozen=True):
    __doc__ = f"{Import.__doc__}\n    {ImportCounts.__doc__}"  # GET /openapi.json shows it


class ImportDetails(ImportView, frozen=True):
    """An import with its winners that wait, at most a thousand of them."""

    waits: list[WaitingView]


class ImportList(BaseModel):
    """A page of imports, the newest first; ``next`` is the cursor of the next page."""

    items: list[ImportView]
    next: str | None = None


class AuditEntry(BaseModel, AuditRecord, frozen=True):
    __doc__ = AuditRecord.__doc__  # GET /openapi.json shows it


class AuditList(BaseModel):
    """A page of the audit log, the newest first; ``next`` is the cursor of the next page."""

    items: list[AuditEntry]
    next: str | None = None


class ImportAnswer(BaseModel):
    """What came of an import.

    Attributes:
        import_id: what ``/imports`` calls it; None if nothing was new.
        trusted: kernels and winners were taken, as a trusted key signed all lines.
        signer: the key that signed all lines; None if no key signed all.
        added: what was new.
        known: what the store had already or had better.
        waiting: winners that wait to be built and raced here.
        dropped: kernels that were left out.
        reason: why they were; empty where they were taken.
    """

    import_id: str | None = None
    trusted: bool = False
    signer: str | None = None
    added: Counts = Counts()
    known: Counts = Counts()
    waiting: int = 0
    dropped: int = 0
    reason: str = ""

    def __add__(self, later: ImportAnswer) -> ImportAnswer:
        return ImportAnswer(
            import_id=self.import_id or later.import_id,
            trusted=later.trusted,
            signer=later.signer,
            added=self.added + later.added,
            known=self.known + later.known,
            waiting=self.waiting + later.waiting,
            dropped=self.dropped + later.dropped,
            reason=self.reason or later.reason,
        )
