"""Runs revisions on the connection handed over, or for developers on ``alembic -x url=...``."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from tuner.store.database import VERSION_TABLE, Store
from tuner.store.models import JobRow
from tuner.store.tables.columns import TextEnum, Utc


def plain_type(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """How a revision spells our own column types: by what the database sees, so that it never changes."""
    if kind == "type" and isinstance(item, Utc):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, TextEnum):
        return "sa.String(16)"
    return False


def run(connection: Connection) -> None:
    """Migrate within the connection's own transaction."""
    context.configure(
        connection=connection,
        target_metadata=JobRow.metadata,
        version_table=VERSION_TABLE,
        render_item=plain_type,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


def run_alone() -> None:
    """Migrate the database named on the command line."""
    url = context.get_x_argument(as_dictionary=True).get("url")
    if not isinstance(url, str):
        raise SystemExit("say which database: alembic -x url=sqlite:///path/to/file.db ...")
    store = Store.open(url)
    with store.engine.begin() as connection:
        run(connection)
    store.close()


given = context.config.attributes.get("connection")
if given is None:
    run_alone()
else:
    run(given)
