"""Checks of a database, and giving back the room of what was deleted."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from tilewright.errors import TilewrightError
from tilewright.schema.config_set import ConfigSet
from tuner.store import best, entities, jobs, sets, trials
from tuner.store.database import Store, StoreError, too_new
from tuner.store.engines.sqlite_engine import BUSY_SECONDS
from tuner.store.models import ArtifactRow, ConfigSetRow, JobRow
from tuner.store.records import Unreadable
from tuner.store.upkeep import staging


def damages(store: Store) -> list[str]:
    """What is damaged in a database of this release's schema, a line each: pages, rows that refer to missing
    ones, kernels and config sets that do not match their digests.

    Raises:
        StoreError: it has another schema.
    """
    if found := damaged_pages(store):
        return found
    need_schema(store)
    with store.read() as session:
        return list(_of_contents(session))


def need_schema(store: Store) -> None:
    """Refuse a database of another schema than this release's.

    Raises:
        StoreError: it has another schema; the message says what to do.
    """
    if (state := store.schema_state()) == "newer":
        raise too_new()
    if state != "head":
        raise StoreError(f"the schema of the database is {state}; run 'tilewright db upgrade' first")


def damaged_pages(store: Store) -> list[str]:
    """What SQLite finds wrong with its file, a line each; PostgreSQL has no such check."""
    if store.engine.dialect.name != "sqlite":
        return []
    with store.read() as session:
        return list(_of_sqlite(session))


def unreadable(store: Store) -> list[str]:
    """The jobs, trials, winners and unended imports that this release cannot read, a line each."""
    with store.read() as session:
        return [str(one) for one in _of_rows(session)]


def vacuum(store: Store) -> tuple[int, int]:
    """Give the room of deleted rows back to the disk; gives the bytes of the database before and after.

    PostgreSQL gives back only what is free at the end of its files, and keeps the rest for new rows: more
    would lock out all others meanwhile.
    """
    before = size(store)
    if store.engine.dialect.name == "sqlite":
        file = str(store.engine.url.database)
        # NOTE: not within a transaction, which every connection of the store begins by itself.
        with contextlib.closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as server:
            server.execute(text("VACUUM ANALYZE"))
    return before, size(store)


def size(store: Store) -> int:
    """Bytes of the database on the disk."""
    if store.engine.dialect.name == "sqlite":
        file = str(store.engine.url.database)
        parts = (Path(file + suffix) for suffix in ("", "-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())
    with store.read() as session:
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _of_sqlite(session: Session) -> Iterator[str]:
    for (line,) in session.execute(text("PRAGMA integrity_check")):
        if line != "ok":
            yield f"the file is damaged: {line}"
    for table, row, parent, _ in session.execute(text("PRAGMA foreign_key_check")):
        yield f"row {row} of {table} refers to a row of {parent} that is missing"


def _of_contents(session: Session) -> Iterator[str]:
    for digest in session.scalars(select(ArtifactRow.digest)).all():
        data = entities.get_artifact(session, digest)  # None: deleted meanwhile
        if data is not None and hashlib.sha256(data).hexdigest() != digest:
            yield f"kernel {digest} is damaged: its bytes have another digest"
    for digest in session.scalars(select(ConfigSetRow.digest)).all():
        packed = sets.packed(session, digest)
        if packed is None:  # deleted meanwhile
            continue
        try:
            ConfigSet.from_bytes(sets.unpack(packed), digest)
        except (TilewrightError, ValueError, zlib.error) as error:
            yield f"config set {digest} is damaged: {error}"


def _of_rows(session: Session) -> Iterator[Unreadable]:
    for job_id in session.scalars(select(JobRow.id).order_by(JobRow.id)).all():
        try:
            jobs.get(session, job_id)  # None: deleted meanwhile, or of an import that enters or leaves
        except Unreadable as error:
            yield error
        yield from trials.unreadable(session, job_id)
    yield from best.unreadable(session)
    yield from staging.unreadable(session)
