"""What the tables have in common: column types and the names of constraints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Double, Integer, MetaData, String, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

from tilewright.schema.entries import MissReason
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import Activation, DType, Layout
from tilewright.schema.trial import Outcome

_NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}
# NOTE: only INTEGER PRIMARY KEY counts up by itself in SQLite.
BigId = BigInteger().with_variant(Integer, "sqlite")


class Utc(TypeDecorator[datetime]):
    """Aware UTC both ways, also where the database keeps no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times, convert the others to UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone; pass an aware datetime")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Attach or convert to UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class TextEnum(TypeDecorator[Any]):
    """A member of a string enumeration as its text. The text of a member that this release lacks is given
    back as it is, so that one row of a newer release does not make a query fail."""

    impl = String(16)
    cache_ok = True

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """The text of a member."""
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """The member of a text, or the text."""
        try:
            return None if value is None else self.kind(value)
        except ValueError:
            return value


class Base(DeclarativeBase):
    """Root of all tables."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: Utc,
        float: Double,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
        **{kind: TextEnum(kind) for kind in (JobStatus, MissReason, Outcome, DType, Layout, Activation)},
    }
