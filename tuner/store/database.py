"""The database: what it refuses, its clock, its inserts and its schema, and the one transaction boundary."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Table,
    create_engine,
    event,
    func,
    insert,
    make_url,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.errors import TilewrightError
from tilewright.trust import private_folder
from tuner.store.models import Base

Values = dict[str, Any]
NEWS = "tilewright_news"  # in the info of a session: the jobs that it added events to
EVENTS = "tilewright_events"  # the channel on which PostgreSQL tells of them
# NOTE: a network that drops packets would hold a connection for hours, and what waits for it.
ALIVE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
log = logging.getLogger("tilewright.database")


class StoreError(TilewrightError):
    """The database cannot be opened, or what is asked of it breaks a rule."""


class NoDatabase(StoreError):
    """The file of the database is missing."""


class SchemaTooNew(StoreError):
    """The database was migrated by a newer release than this one."""


class IdempotencyConflict(StoreError):
    """An idempotency key came again with another request."""


class JobTaken(StoreError):
    """The job is not, or no longer, this recorder's to write: stop working on it."""


class WritersBusy(TilewrightError):
    """As many threads as may write to the database, or wait for that, do so already; the request itself
    breaks no rule."""


T = TypeVar("T")
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


def state(connection: Connection) -> State:
    """How the database's schema relates to this release's."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    current = set(context.get_current_heads())
    scripts = _scripts(MIGRATIONS)
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


class Changes:
    """Reads SQLite's ``data_version``, which takes microseconds; PostgreSQL has no counterpart.

    Safe to share between threads.
    """

    def __init__(self, store: Store) -> None:
        self._engine = store.engine
        self._tells = store.engine.dialect.name == "sqlite"
        # NOTE: a connection of its own that never writes, since SQLite tells of the commits of others only.
        self._connection: Any = None
        self._lost = 0
        self._lock = threading.Lock()

    def stamp(self) -> int | None:
        """A number that changes with each commit of any process; None if the database tells none."""
        if not self._tells:
            return None
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._engine.raw_connection()
                row = self._connection.driver_connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                if self._connection is not None:
                    self._connection.invalidate()
                    self._connection = None
                self._lost += 1
                return None
            # NOTE: each connection counts for itself, in 32 bits.
            return (self._lost << 32) + int(row[0])

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


BUSY_SECONDS = 30
_READ = "tilewright_read"
_WAIT_S = "tilewright_wait_s"
_BUSY_TIMEOUT = "PRAGMA busy_timeout={}"  # NOTE: a pragma takes no parameter
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.01
# NOTE: a transaction of its own, which does not wait for the disk: those that notify commit one at a time.
_NOTIFY = text(
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, job)"
    " FROM unnest(CAST(:jobs AS text[])) AS job"
)
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
            StoreError: the URL is of another kind, its driver is not installed or nothing answers.
            NoDatabase: the file is missing.
        """
        parsed = _parse(url)
        shown = without_secrets(parsed)
        if not create and parsed.drivername == "sqlite" and not Path(str(parsed.database)).exists():
            raise NoDatabase(f"there is no database {shown} yet; 'tilewright serve' makes it")
        try:
            engine = _sqlite(parsed, on_lock) if parsed.drivername == "sqlite" else _postgres(parsed)
            with engine.connect():
                pass
        except ModuleNotFoundError as error:
            raise StoreError(
                f"{shown} needs psycopg; install the extra 'postgres' of this package"
            ) from error
        # NOTE: the last where SQLite quotes a damaged schema.
        except (DBAPIError, sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreError(f"cannot open {shown}: {cause}; check that it exists and may be used") from error
        if parsed.drivername == "sqlite":
            _keep_to_file(engine)
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
                self._notify(session.info[NEWS])

    def _notify(self, job_ids: Collection[str]) -> None:
        """Notify readers that these jobs have new events; if that fails, readers find the events at a later
        look."""
        options: dict[str, Any] = {_READ: True, "isolation_level": "AUTOCOMMIT"}
        try:
            with self.engine.connect().execution_options(**options) as connection:
                connection.execute(_NOTIFY, {"channel": EVENTS, "jobs": list(job_ids)})
        except SQLAlchemyError as error:  # also of a pool in use: the transaction is committed
            log.info("followers hear later of new events: %s", error)

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that cannot write, and that never waits for one that does."""
        options: dict[str, Any] = {_READ: True}
        if self.engine.dialect.name == "postgresql":
            options["postgresql_readonly"] = True
        with Session(self.engine.execution_options(**options), expire_on_commit=False) as session:
            yield session

    def impatient(self, wait_s: float, writers: int) -> Store:
        """The same database for callers who rather try again later: a transaction waits at most ``wait_s``
        seconds for other writers, and at most ``writers`` threads do so at once."""
        engine = self.engine.execution_options(**{_WAIT_S: wait_s})
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
                if before == "head" or not _is_busy(error.orig):
                    raise
            log.warning(
                "another process migrates the database or writes to it; this one waits until that has ended"
            )

    def schema_state(self) -> State:
        """``empty``, ``older``, ``head`` or ``newer`` than this release."""
        with self.engine.execution_options(**{_READ: True}).connect() as connection:
            return state(connection)

    def close(self) -> None:
        """Close every connection; those in use follow when their transactions end."""
        # NOTE: the pool forgets connections in use, and nothing else would close them.
        event.listen(self.engine, "checkin", lambda _connection, entry: entry.close())
        self.engine.dispose()


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
    return parsed


def _postgres(url: URL) -> Engine:
    options = {name: value for name, value in ALIVE.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=options)
    event.listen(engine, "connect", _connect_postgres)
    event.listen(engine, "begin", _begin_postgres)
    return engine


def _connect_postgres(connection: Any, _: object) -> None:
    """Have the server, too, notice a client that is gone: its transaction would keep its locks. And have it
    write times as the driver can read them, which takes no year 0 or 10000 of another time zone."""
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.execute("SET DateStyle = 'ISO'")
        for name in ("idle", "interval", "count"):
            cursor.execute(f"SET tcp_keepalives_{name} = {ALIVE[f'keepalives_{name}']}")
        cursor.execute(f"SET tcp_user_timeout = {ALIVE['tcp_user_timeout']}")
    connection.commit()


def _begin_postgres(connection: Connection) -> None:
    options = connection.get_execution_options()
    wait_s = options.get(_WAIT_S)
    if wait_s is not None and not options.get(_READ):
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1e3 * wait_s)}")


def _sqlite(url: URL, on_lock: Callable[[float], None]) -> Engine:
    file = Path(url.database or "")
    private_folder(file.parent)
    if not file.exists():
        file.touch(0o600)  # others could read results and digests of keys; its log gets the same mode
    engine = create_engine(
        url,
        connect_args={"timeout": BUSY_SECONDS},
        pool_size=8,
        max_overflow=56,
        json_deserializer=_json_or_text,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", functools.partial(_begin_sqlite, on_lock))
    return engine


def _keep_to_file(engine: Engine) -> None:
    """Refuse transactions while the path leads to another file than the one that was opened, or to none:
    connections that are open would write to a file that no name leads to, and new ones to another."""
    file = Path(str(engine.url.database)).absolute()
    opened = _identity(file)

    def check(*_: object) -> None:
        if _identity(file) != opened:
            error = sqlite3.OperationalError("its file was removed or replaced")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY_DBMOVED
            raise error

    # NOTE: after connecting too, else one that began before the file was replaced stays in the pool.
    for moment in ("do_connect", "connect", "checkout"):
        event.listen(engine, moment, check, insert=True)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _json_or_text(text: str) -> Any:
    """The value of a JSON text; damaged text itself, which no record is made of, so that only its row is
    unreadable and not each query that meets it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


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
    options = connection.get_execution_options()
    reads, wait_s = bool(options.get(_READ)), options.get(_WAIT_S, BUSY_SECONDS)
    driver.execute(f"PRAGMA query_only={int(reads)}")
    if reads:
        driver.execute(_BUSY_TIMEOUT.format(round(1e3 * wait_s)))
        connection.exec_driver_sql("BEGIN")
        return
    started = time.perf_counter()
    driver.execute(_BUSY_TIMEOUT.format(0))
    try:
        _begin_immediate(connection, driver, wait_s)
    finally:
        on_lock(time.perf_counter() - started)
        driver.execute(_BUSY_TIMEOUT.format(round(1e3 * wait_s)))


def _is_busy(error: BaseException | None) -> bool:
    """Whether another connection holds the lock of SQLite's writers."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _begin_immediate(connection: Connection, driver: Any, wait_s: float) -> None:
    """Begin when no other writes, within so many seconds.

    SQLite itself waits longer from try to try, up to 0.1 s, however short the transactions of the others are:
    of many writers, some would wait for seconds.
    """
    pause, until = _FIRST_PAUSE_S, time.monotonic() + wait_s
    while (left := until - time.monotonic()) > 0:
        try:
            driver.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                break
        time.sleep(min(left, random.uniform(0.5, 1.5) * pause))
        pause = min(1.2 * pause, _LONGEST_PAUSE_S)
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # for SQLAlchemy to raise
