"""Export and import over HTTP; what a line of an export holds is in :mod:`tuner.store.exchange`."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from pydantic import AwareDatetime, BaseModel, ConfigDict, field_validator

from tilewright.schema.codec import FamilyName, KeyName


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
        # NOTE: pydantic takes numbers, also as text, for seconds since 1970, which is no date-time of the
        # document.
        if value is None or isinstance(value, datetime) or (isinstance(value, str) and ":" in value):
            return value
        raise ValueError("give a date and time with its zone, such as 2026-01-31T12:00:00Z")


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
