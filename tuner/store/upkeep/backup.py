"""Backups. A backup of either database is one SQLite file, so that it can be restored into either.

SQLite's own backup copies a SQLite database, as one snapshot that blocks no writer. Rows are copied, table by
table in one snapshot, where PostgreSQL is the source or the target.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, func, insert, inspect, select, text
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from tuner.store import sets
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import Store, StoreError, upgrade, without_secrets
from tuner.store.engines import READ
from tuner.store.engines.sqlite_engine import url_of
from tuner.store.models import Base
from tuner.store.upkeep.check import damaged_pages, damages, need_schema
from tuner.store.upkeep.sqlite_file import beside

_ROWS = 500
_OWNERS = 0o600  # others could read results and digests of keys


def back_up(store: Store, file: Path) -> int:
    """Write a backup of a database that may be in use, and check it; gives its size in bytes. A file that is
    there already is replaced once the new one is whole; a link stays, and what it leads to is replaced.

    Raises:
        StoreError: there is no schema, or another than this release's (PostgreSQL); the file is of the
            database itself, of one in use or no regular one; or the backup is damaged.
        OSError: the file cannot be written; names it.
    """
    if store.schema_state() == "empty":
        raise StoreError(
            f"{without_secrets(store.engine.url)} has nothing to back up, not even tables; check the URL"
        )
    if file.exists() and any(own.exists() and own.samefile(file) for own in _files(store)):
        raise StoreError(f"{file} is of the database itself, which a backup would replace; use another file")
    if file.exists() and not file.is_file():
        raise StoreError(f"{file} is no regular file, so a backup cannot replace it; use another file")
    _need_unused(file)
    with beside(file) as copy:
        copy.touch(_OWNERS)
        if store.engine.dialect.name == "sqlite":
            _copy_sqlite(store, copy)
        else:
            _copy_to_sqlite(store, copy)
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")  # one file, without one for the log
            found = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise StoreError(f"the backup is damaged ({found}); run 'tilewright db check' on the database")
        _need_unused(file)  # still
        os.replace(_synced(copy), os.path.realpath(file))
    return file.stat().st_size


def restore(file: Path, url: str, who: str = audit.SERVICE) -> None:
    """Make an empty database what a backup holds, at this release's schema, with an entry in the audit log
    that says who did.

    Raises:
        StoreError: the database is not empty or cannot be written, the file is no backup, damaged or of a
            database in use, or a newer release wrote it.
    """
    _need_whole(file)
    with contextlib.closing(Store.open(url)) as target:
        database = target.engine.url.database if target.engine.dialect.name == "sqlite" else None
        with beside(Path(database) if database else Path(tempfile.gettempdir()) / "backup") as copy:
            _need_empty(target)
            copy.touch(_OWNERS)
            with file.open("rb") as backup, copy.open("wb") as written:
                shutil.copyfileobj(backup, written)
            with contextlib.closing(_opened(copy, file)) as source:
                with _telling_damage(file):
                    _check(source, file)
                    with source.begin() as session:
                        audit.note(session, who, Action.RESTORE, file=file.name)
                        sets.renumber(session)
                if database is None:
                    _copy_into(source, target)
            if database is not None:
                _need_empty(target)  # still: a service may have started on it
                target.close()
                os.replace(_synced(copy), os.path.realpath(database))


def _need_whole(file: Path) -> None:
    if log := _beside_database(file, "-wal", "-journal"):
        raise StoreError(
            f"{file} is a database in use, or one that was not closed: a part of it is in {log.name};"
            " make a backup with 'tilewright backup' and restore that"
        )


def _need_unused(file: Path) -> None:
    # NOTE: SQLite would apply an old log to the backup; -shm alone is of a database that is open.
    if log := _beside_database(file, "-wal", "-journal", "-shm"):
        raise StoreError(
            f"{file} is a database in use, or one that was not closed: {log} belongs to it; use another file,"
            " or remove both once no process uses them"
        )


def _beside_database(file: Path, *suffixes: str) -> Path | None:
    """The first file with content that SQLite made beside a database, or beside what a link leads to."""
    real = os.path.realpath(file)
    logs = (Path(f"{real}{suffix}") for suffix in suffixes)
    return next((log for log in logs if log.exists() and log.stat().st_size), None)


def _need_empty(target: Store) -> None:
    # NOTE: a file is replaced as a whole, with tables of others if it has any.
    is_file = target.engine.dialect.name == "sqlite"
    if target.schema_state() != "empty" or (is_file and inspect(target.engine).get_table_names()):
        raise StoreError(
            f"{without_secrets(target.engine.url)} is not empty; restore into a new database and point"
            " TILEWRIGHT_DATABASE_URL to it"
        )


def _opened(copy: Path, file: Path) -> Store:
    try:
        return Store.open(url_of(copy))
    except StoreError as error:
        raise StoreError(f"{file} is no backup of tilewright, or is damaged; use an older backup") from error


@contextlib.contextmanager
def _telling_damage(file: Path) -> Iterator[None]:
    """Refuse a backup so damaged that SQLite cannot read it, or that lacks tables; a full disk is no damage
    of it."""
    try:
        yield
    except DatabaseError as error:
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if isinstance(error, OperationalError) and code != sqlite3.SQLITE_ERROR:
            raise
        raise StoreError(f"{file} is damaged: {error.orig}; use an older backup") from error


def _check(source: Store, file: Path) -> None:
    if source.schema_state() == "empty":
        raise StoreError(f"{file} is no backup of tilewright: it is empty; use an older backup")
    if found := damaged_pages(source) or _damages_at_head(source):
        raise StoreError(f"{file} is damaged: {found[0]}; use an older backup")


def _damages_at_head(source: Store) -> list[str]:
    source.migrate()
    return damages(source)


def _files(store: Store) -> list[Path]:
    """The files of a SQLite database."""
    is_file, name = store.engine.dialect.name == "sqlite", str(store.engine.url.database)
    return [Path(f"{name}{suffix}") for suffix in ("", "-wal", "-shm")] if is_file else []


def _copy_sqlite(store: Store, copy: Path) -> None:
    with contextlib.closing(sqlite3.connect(copy)) as target:
        source = store.engine.raw_connection()
        try:
            driver = source.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.backup(target)
        finally:
            source.close()


def _copy_to_sqlite(store: Store, copy: Path) -> None:
    need_schema(store)
    with contextlib.closing(Store.open(url_of(copy))) as target:
        _copy_rows(store, target)


def _copy_into(source: Store, target: Store) -> None:
    """As :func:`_copy_rows`.

    Raises:
        StoreError: the database does not take the rows; it stays empty.
    """
    try:
        _copy_rows(source, target)
    except SQLAlchemyError as error:
        shown = without_secrets(target.engine.url)
        reason = str(getattr(error, "orig", None) or error).strip()
        raise StoreError(
            f"{shown} cannot be restored: {reason}; it is still empty: see to that, and restore again"
        ) from error


def _copy_rows(source: Store, target: Store) -> None:
    """Fill an empty database in one transaction, so that it stays empty if that breaks off."""
    reader = source.engine.execution_options(**{READ: True})
    with reader.connect() as reading, target.engine.begin() as writing:
        upgrade(writing)
        if source.engine.dialect.name == "postgresql":
            reading = reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        for table in Base.metadata.sorted_tables:
            rows = reading.execution_options(yield_per=_ROWS).execute(select(table))
            for page in rows.partitions():
                writing.execute(insert(table), [dict(row._mapping) for row in page])
        if target.engine.dialect.name == "postgresql":
            _set_sequences(writing)


def _set_sequences(connection: Connection) -> None:
    """Let PostgreSQL count on behind the ids that were copied."""
    for table in Base.metadata.sorted_tables:
        column = next(iter(table.primary_key))
        named = {"table": f'"{table.name}"', "column": column.name}
        sequence = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), named).scalar()
        last = connection.execute(select(func.max(column))).scalar()
        if sequence and last:
            connection.execute(text("SELECT setval(:sequence, :last)"), {"sequence": sequence, "last": last})


def _synced(file: Path) -> Path:
    """The file, once the disk has all of it."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return file
