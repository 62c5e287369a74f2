"""INSERT, plain and ON CONFLICT, on both databases: the unique constraints decide races, not we."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import Table, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tuner.store.models import Base

Values = dict[str, Any]


def insert_row(session: Session, model: type[Base], values: Values) -> Any:
    """Insert; gives the first column of the primary key."""
    table = _table(model)
    return session.execute(insert(table).returning(_key(table)), values).scalar_one()


def insert_new(session: Session, model: type[Base], values: Values) -> bool:
    """Insert unless a unique constraint already holds the row; True where it was inserted.

    Waits for a concurrent insert of the same identity, so that a False can be read back at once.
    """
    table = _table(model)
    statement = _insert(session, table).on_conflict_do_nothing().returning(_key(table))
    return session.execute(statement, values).first() is not None


def insert_many_new(session: Session, model: type[Base], rows: Sequence[Values]) -> None:
    """Insert each row unless a unique constraint already holds it."""
    if rows:
        session.execute(_insert(session, _table(model)).on_conflict_do_nothing(), rows)


def insert_or_update(
    session: Session, model: type[Base], values: Values, identity: tuple[str, ...], kept: tuple[str, ...] = ()
) -> Any:
    """Insert, or overwrite all but ``identity`` and ``kept`` of the row that is there; gives its key."""
    table = _table(model)
    statement = _insert(session, table)
    changed = {name: statement.excluded[name] for name in values if name not in identity + kept}
    upsert = statement.on_conflict_do_update(index_elements=list(identity), set_=changed)
    return session.execute(upsert.returning(_key(table)), values).scalar_one()


def _insert(session: Session, table: Table) -> postgresql.Insert | sqlite.Insert:
    dialect = session.get_bind().dialect.name
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def _table(model: type[Base]) -> Table:
    # NOTE: a statement on the table skips what an ORM insert does beyond it, half of its time.
    return cast(Table, model.__table__)


def _key(table: Table) -> Any:
    return next(iter(table.primary_key))
