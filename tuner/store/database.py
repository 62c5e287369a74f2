"""The database: what it refuses, its clock, its inserts and its schema, and the one transaction boundary."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Table,
    event,
    func,
    insert,
    inspect,
    make_url,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from tilewright.errors import TilewrightError
from tuner.store.engines import READ, WAIT_S, postgres_engine, sqlite_engine
from tuner.store.engines.full_disk import remedy
from tuner.store.models import Base

Values = dict[str, Any]
T = TypeVar("T")
NEWS = "tilewright_news"  # in the info of a session: the jobs that it added events to
log = logging.getLogger("tilewright.database")


class Patience(Protocol):
    """Runs a transaction, and may run it again if the database does not take it."""

    def __call__(self, work: Callable[[], T], /) -> T:
        """What ``work`` gives."""


def at_once(work: Callable[[], T], /) -> T:
    """Run a transaction once."""
    return work()


class StoreError(TilewrightError):
    """The database cannot be opened, or what is asked of it breaks a rule."""


class NoDatabase(StoreError):
    """The file of the database is missing."""


class SchemaTooNew(StoreError):
    """The database was migrated by a newer release than this one."""


def too_new() -> SchemaTooNew:
    """The error for a database that a newer release migrated."""
    told = "a newer release of tilewright migrated this database; upgrade this installation or use another"
    return SchemaTooNew(told)


class IdempotencyConflict(StoreError):
    """An idempotency key came again with another request."""


class JobTaken(StoreError):
    """The job is not, or no longer, this recorder's to write: stop working on it."""


class WritersBusy(TilewrightError):
    """As many threads as may write to the database, or wait for that, do so already; the request itself
    breaks no rule."""


_PART = 500  # items that one statement names
_START = datetime(1970, 1, 1, tzinfo=UTC)


def ahead(session: Session, seconds: float = 0.0) -> ColumnElement[Any] | datetime:
    """The time ``seconds`` from now, to be used within a statement and compared with such times alone.

    With PostgreSQL it is the server's clock, so that the clocks of other machines do not matter. A SQLite
    file lives on this machine, so its clock is the time since the machine's start, which nobody can set, as
    seconds after 1970.
    """
    if session.get_bind().dialect.name == "postgresql":
        return func.clock_timestamp() + timedelta(seconds=seconds)
    return _START + timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)


# Plain inserts and ON CONFLICT, on both databases: the unique constraints decide races.


def insert_row(session: Session, model: type[Base], values: Values) -> Any:
    """Insert; gives the first column of the primary key."""
    return session.execute(_insert_row(model), values).scalar_one()


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Items in as many parts as statements need to name them all."""
    return (items[start : start + _PART] for start in range(0, len(items), _PART))


def insert_new(session: Session, model: type[Base], values: Values) -> bool:
    """Insert unless a unique constraint already holds the row; True if it was inserted.

    Waits for a concurrent insert of the same identity, so that a False can be read back at once.
    """
    return session.execute(_insert_new(_dialect(session), model), values).first() is not None


def insert_many_new(session: Session, model: type[Base], rows: Sequence[Values]) -> None:
    """Insert each row unless a unique constraint already holds it."""
    if rows:
        session.execute(_insert(_dialect(session), _table(model)).on_conflict_do_nothing(), rows)


def insert_or_update(
    session: Session, model: type[Base], values: Values, identity: tuple[str, ...], kept: tuple[str, ...] = ()
) -> Any:
    """Insert, or overwrite all but ``identity`` and ``kept`` of the row that is there; gives its key."""
    table = _table(model)
    statement = _insert(_dialect(session), table)
    changed = {name: statement.excluded[name] for name in values if name not in identity + kept}
    upsert = statement.on_conflict_do_update(index_elements=list(identity), set_=changed)
    return session.execute(upsert.returning(_key(table)), values).scalar_one()


# NOTE: built once: building a statement anew costs more than SQLite takes to run it, while others wait.
@functools.cache
def _insert_row(model: type[Base]) -> Executable:
    table = _table(model)
    return insert(table).returning(_key(table))


@functools.cache
def _insert_new(dialect: str, model: type[Base]) -> Executable:
    table = _table(model)
    return _insert(dialect, table).on_conflict_do_nothing().returning(_key(table))


def _insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def _dialect(session: Session) -> str:
    return session.get_bind().dialect.name


def _table(model: type[Base]) -> Table:
    # NOTE: a statement on the table skips what an ORM insert does beyond it, half of its time.
    return cast(Table, model.__table__)


def _key(table: Table) -> Any:
    return next(iter(table.primary_key))


# NOTE: beside this very package; an import could find a folder of that name in the working directory.
MIGRATIONS = Path(__file__).parents[2] / "migrations"
VERSION_TABLE = "tilewright_schema"
State = Literal["empty", "older", "head", "newer"]


class Lock(enum.IntEnum):
    """Locks of PostgreSQL that a transaction holds until its end."""

    MIGRATION = 0x7117E
    RESULTS = 0x1117
    MISSES = 0x3155


_TAKE = text("SELECT pg_advisory_xact_lock(:key)")


def hold(session: Session, lock: Lock) -> None:
    """Let no other transaction hold a lock until the end of this one."""
    if session.get_bind().dialect.name == "postgresql":  # SQLite has one writer
        session.execute(_TAKE, {"key": lock})


def lock_results(session: Session) -> None:
    """Hold the lock on results until the end of this transaction: no other one can import results, delete
    them or choose which are served, because it could delete what this one refers to. Call it before any row
    of results is locked."""
    hold(session, Lock.RESULTS)


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for a connection, whatever the working directory."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("recursive_version_locations", "true")
    config.attributes["connection"] = connection
    return config


@functools.cache
def _scripts(folder: Path) -> ScriptDirectory:
    """The revisions in a folder, whose files are read once."""
    return ScriptDirectory(str(folder), recursive_version_locations=True)


# NOTE: Alembic's own query is another one each time, and each stays in the cache of compiled statements.
_REVISIONS = text(f"SELECT version_num FROM {VERSION_TABLE}")


def state(connection: Connection) -> State:
    """How the database's schema relates to this release's."""
    is_there, scripts = inspect(connection).has_table(VERSION_TABLE), _scripts(MIGRATIONS)
    current = set(connection.scalars(_REVISIONS)) if is_there else set()
    if not current:
        return "empty"
    if current == set(scripts.get_heads()):
        return "head"
    return "older" if all(_is_known(scripts, revision) for revision in current) else "newer"


def upgrade(connection: Connection) -> None:
    """See :meth:`tuner.store.database.Store.migrate`; within the transaction of a connection."""
    if connection.dialect.name == "postgresql":
        connection.execute(_TAKE, {"key": Lock.MIGRATION})
    found = state(connection)
    if found == "newer":
        raise too_new()
    if found != "head":
        command.upgrade(alembic_config(connection), "head")


def _is_known(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        return scripts.get_revision(revision) is not None
    except CommandError:
        return False


_TURN_S = 0.2  # NOTE: a request that waits for longer holds a thread which others could use


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """An open database; safe to share between threads, not between processes.

    Attributes:
        engine: its connections.
        writers: how many threads may write or wait for that; None for any number.
    """

    engine: Engine
    writers: threading.BoundedSemaphore | None = None

    @classmethod
    def open(
        cls, url: str, on_lock: Callable[[float], None] = lambda _seconds: None, *, create: bool = True
    ) -> Store:
        """Connect to ``sqlite:///path`` or ``postgresql+psycopg://...``; a file that is missing is made with
        its folder, unless ``create`` is false.

        SQLite runs in WAL mode with ``synchronous=NORMAL``: what was committed survives the death
        of every process, and waits up to 30 s for another writer; ``on_lock`` is told how many seconds each
        writing transaction waited, also in vain.

        Raises:
            StoreError: the URL is of another kind, its driver is not installed, nothing answers, or the
                database is another application's, which is left as it is.
            NoDatabase: the file is missing.
        """
        parsed = _parse(url)
        shown = without_secrets(parsed)
        is_file = parsed.drivername == "sqlite"
        if not create and is_file and not Path(str(parsed.database)).exists():
            raise NoDatabase(f"there is no database {shown} yet; 'tilewright serve' makes it")
        try:
            engine = sqlite_engine.of(parsed, on_lock) if is_file else postgres_engine.of(parsed)
            _refuse_foreign(engine)
            if is_file:
                sqlite_engine.log_ahead(engine)
        except ModuleNotFoundError as error:
            raise StoreError(
                f"{shown} needs psycopg; install the extra 'postgres' of this package"
            ) from error
        # NOTE: the last where SQLite quotes a damaged schema.
        except (DBAPIError, sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:
            raise _cannot_open(shown, error) from error
        if is_file:
            sqlite_engine.keep_to_file(engine)
        return cls(engine)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        """A transaction that may write: commits at the end of the block, rolls back on an exception.

        Raises:
            WritersBusy: as many threads as may write or wait did so for ``_TURN_S`` seconds.
        """
        with self._turn():
            with Session(self.engine, expire_on_commit=False) as session, session.begin():
                yield session
            if NEWS in session.info and self.engine.dialect.name == "postgresql":
                postgres_engine.notify(self.engine, session.info[NEWS])

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that cannot write, and that never waits for one that does."""
        options: dict[str, Any] = {READ: True}
        if self.engine.dialect.name == "postgresql":
            options["postgresql_readonly"] = True
        with Session(self.engine.execution_options(**options), expire_on_commit=False) as session:
            yield session

    def impatient(self, wait_s: float, writers: int) -> Store:
        """The same database for callers who rather try again later: a transaction waits at most ``wait_s``
        seconds for other writers, and at most ``writers`` threads do so at once."""
        engine = self.engine.execution_options(**{WAIT_S: wait_s})
        return Store(engine, threading.BoundedSemaphore(writers))

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        if self.writers is None:
            yield
            return
        if not self.writers.acquire(timeout=_TURN_S):
            raise WritersBusy("too many requests wait for the database; try again in a few seconds")
        try:
            yield
        finally:
            self.writers.release()

    def migrate(self) -> None:
        """Bring an empty or older database to this release's schema, in one transaction.

        Several processes may do so at once; one works and the others wait for it, however long it takes.

        Raises:
            SchemaTooNew: a newer release migrated it; the message says what to do.
        """
        while True:
            before = self.schema_state()
            try:
                with self.engine.begin() as connection:
                    upgrade(connection)
                return
            except DBAPIError as error:
                if before == "head" or not sqlite_engine.is_busy(error.orig):
                    raise
            log.warning(
                "another process migrates the database or writes to it; this one waits until that has ended"
            )

    def schema_state(self) -> State:
        """``empty``, ``older``, ``head`` or ``newer`` than this release."""
        with self.engine.execution_options(**{READ: True}).connect() as connection:
            return state(connection)

    def close(self) -> None:
        """Close every connection; those in use follow when their transactions end."""
        # NOTE: the pool forgets connections in use, and nothing else would close them.
        event.listen(self.engine, "checkin", lambda _connection, entry: entry.close())
        self.engine.dispose()


def _cannot_open(shown: str, error: Exception) -> StoreError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return StoreError(
        f"cannot open {shown}: {cause}; {remedy(error, 'check that it exists and may be used')}"
    )


def _refuse_foreign(engine: Engine) -> None:
    with engine.execution_options(**{READ: True}).connect() as connection:
        tables = inspect(connection).get_table_names()
    if tables and VERSION_TABLE not in tables:
        engine.dispose()
        raise StoreError(
            f"{without_secrets(engine.url)} is not empty and no database of tilewright: it has tables, but"
            f" no {VERSION_TABLE}; use one of tilewright, or an empty one"
        )


def without_secrets(url: URL | str) -> str:
    """The URL of a database without its passwords, of which its options may have some too."""
    parsed = make_url(url)
    secret = [name for name in parsed.query if "password" in name or "secret" in name]
    return parsed.difference_update_query(secret).render_as_string(hide_password=True)


def _parse(url: str) -> URL:
    try:
        url.encode()
        parsed = make_url(url)
        if "@" in (parsed.host or ""):
            raise ValueError("of a password")
    except (ArgumentError, ValueError):  # the last of a port, too
        raise StoreError(
            "the store's URL must look like sqlite:///path/to/file.db in UTF-8, or like"
            " postgresql+psycopg://user:password@host:5432/database with %40 for @ in the password"
        ) from None
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreError(
            f"a store of kind {parsed.drivername!r} is not supported; use sqlite:///path/to/file.db"
            " or postgresql+psycopg://user:password@host/database"
        )
    if parsed.drivername == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("a store in memory keeps nothing; use sqlite:///path/to/file.db")
    if parsed.drivername == "sqlite" and sqlite_engine.cuts_file(url):
        raise StoreError("'?' in the URL of a SQLite file begins its options; use %3F for it in the path")
    return parsed
