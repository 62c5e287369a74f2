"""The schema's version: which one a database has, and how it gets to ours."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text

from tuner.store.errors import SchemaTooNew

# NOTE: beside this very package; an import could find a folder of that name in the working directory.
MIGRATIONS = Path(__file__).parents[2] / "migrations"
VERSION_TABLE = "tilewright_schema"
State = Literal["empty", "older", "head", "newer"]

_MIGRATION_LOCK = 0x7117E


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for a connection, whatever the working directory."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def state(connection: Connection) -> State:
    """How the database's schema relates to this release's."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    current = set(context.get_current_heads())
    scripts = ScriptDirectory.from_config(alembic_config(connection))
    if not current:
        return "empty"
    if current == set(scripts.get_heads()):
        return "head"
    return "older" if all(_is_known(scripts, revision) for revision in current) else "newer"


def upgrade(engine: Engine) -> None:
    """See :meth:`tuner.store.database.Store.migrate`."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        found = state(connection)
        if found == "newer":
            raise SchemaTooNew(
                "a newer release of tilewright migrated this database; upgrade this installation"
                " or point it to another database"
            )
        if found != "head":
            command.upgrade(alembic_config(connection), "head")


def _is_known(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        return scripts.get_revision(revision) is not None
    except CommandError:
        return False
