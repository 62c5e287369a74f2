"""``Store``: one database, opened by URL, with the one transaction boundary."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from tuner.store import schema
from tuner.store.errors import StoreError

BUSY_SECONDS = 30
_READ = "tilewright_read"


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """An open database; safe to share between threads, not between processes.

    Attributes:
        engine: its connections.
    """

    engine: Engine

    @classmethod
    def open(cls, url: str, on_lock: Callable[[float], None] = lambda _seconds: None) -> Store:
        """Connect to ``sqlite:///path`` (created with its folder) or ``postgresql+psycopg://...``.

        SQLite runs in WAL mode with ``synchronous=NORMAL``: what was committed survives the death
        of every process, and waits up to 30 s for another writer; ``on_lock`` is told how many seconds each
        writing transaction waited, also in vain.

        Raises:
            StoreError: the URL is of another kind, its driver is not installed or nothing answers.
        """
        parsed = _parse(url)
        shown = parsed.render_as_string(hide_password=True)
        try:
            engine = _sqlite(parsed, on_lock) if parsed.drivername == "sqlite" else _postgres(parsed)
            with engine.connect():
                return cls(engine)
        except ModuleNotFoundError as error:
            raise StoreError(
                f"{shown} needs psycopg; install the extra 'postgres' of this package"
            ) from error
        except (DBAPIError, sqlite3.DatabaseError, OSError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreError(f"cannot open {shown}: {cause}; check that it exists and may be used") from error

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        """A transaction that may write: commits at the end of the block, rolls back on an exception."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that cannot write, and that never waits for one that does."""
        options: dict[str, Any] = {_READ: True}
        if self.engine.dialect.name == "postgresql":
            options["postgresql_readonly"] = True
        with Session(self.engine.execution_options(**options), expire_on_commit=False) as session:
            yield session

    def migrate(self) -> None:
        """Bring an empty or older database to this release's schema, in one transaction.

        Several processes may do so at once; one works and the others wait for it.

        Raises:
            SchemaTooNew: a newer release migrated it; the message says what to do.
        """
        schema.upgrade(self.engine)

    def schema_state(self) -> schema.State:
        """``empty``, ``older``, ``head`` or ``newer`` than this release."""
        with self.engine.execution_options(**{_READ: True}).connect() as connection:
            return schema.state(connection)

    def close(self) -> None:
        """Close every connection; transactions still open are rolled back."""
        self.engine.dispose()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError("the store's URL must look like sqlite:///path/to/file.db") from None
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreError(
            f"a store of kind {parsed.drivername!r} is not supported; use sqlite:///path/to/file.db"
            " or postgresql+psycopg://user:password@host/database"
        )
    if parsed.drivername == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("a store in memory keeps nothing; use sqlite:///path/to/file.db")
    return parsed


def _postgres(url: URL) -> Engine:
    return create_engine(url, pool_pre_ping=True)


def _sqlite(url: URL, on_lock: Callable[[float], None]) -> Engine:
    Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, pool_size=8, max_overflow=56)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", functools.partial(_begin_sqlite, on_lock))
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # NOTE: without this the driver begins by itself, too late, and commits before a CREATE TABLE.
    connection.isolation_level = None
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(on_lock: Callable[[float], None], connection: Connection) -> None:
    # NOTE: a transaction that reads first and writes later fails at once when another wrote in
    # between, whatever the timeout; so writers take the lock at the start.
    driver: Any = connection.connection.dbapi_connection
    reads = bool(connection.get_execution_options().get(_READ))
    driver.execute(f"PRAGMA query_only={int(reads)}")
    started = time.perf_counter()
    try:
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
    finally:
        if not reads:
            on_lock(time.perf_counter() - started)
