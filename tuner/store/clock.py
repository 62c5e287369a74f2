"""The clock by which leases end: one for all who share a database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func
from sqlalchemy.orm import Session

from tuner.store.records import utc_now


def ahead(session: Session, seconds: float = 0.0) -> ColumnElement[Any] | datetime:
    """The time ``seconds`` from now, to be used within a statement: by the database server where there is
    one, so that the clocks of several machines do not matter, else by this machine, on which a SQLite file
    lives."""
    delta = timedelta(seconds=seconds)
    if session.get_bind().dialect.name == "postgresql":
        return func.clock_timestamp() + delta
    return utc_now() + delta
