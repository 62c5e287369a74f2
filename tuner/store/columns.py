"""How the tables' columns are kept: types, names of constraints, the root class."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Double, Enum, Integer, MetaData, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

from tilewright.problem import Activation, DType, Layout
from tilewright.trial import Outcome
from tuner.store.records import JobStatus

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


def _text_enum(kind: type[Any]) -> Enum:
    return Enum(kind, native_enum=False, length=16, values_callable=list)


class Base(DeclarativeBase):
    """Root of all tables."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: Utc,
        float: Double,
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
        **{kind: _text_enum(kind) for kind in (JobStatus, Outcome, DType, Layout, Activation)},
    }
