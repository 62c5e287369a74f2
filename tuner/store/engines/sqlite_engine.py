"""SQLite: connections to one file, transactions that wait for other writers, and whether others wrote."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from sqlalchemy import URL, Connection, Engine, create_engine, event

from tilewright.trust import private_folder
from tuner.store.engines import READ, WAIT_S

BUSY_SECONDS = 30
_BUSY_TIMEOUT = "PRAGMA busy_timeout={}"  # NOTE: a pragma takes no parameter
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.01
_OPTIONS = {"uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}


def url_of(file: Path) -> str:
    """The URL of a file of any name."""
    return f"sqlite:///{file}".replace("%", "%25").replace("?", "%3F")


def file_of(url: URL) -> Path:
    """The file of a URL."""
    # NOTE: as SQLAlchemy has it, which drops ".." together with what precedes it, a symlink or not.
    return Path(os.path.abspath(url.database or ""))


def cuts_file(url: str) -> bool:
    """Whether what follows a ``?`` in a URL is a part of the file's name rather than options."""
    _, mark, options = url.partition("?")
    names = {name for name, _ in parse_qsl(options, keep_blank_values=True)}
    return bool(mark) and not (names and names <= _OPTIONS)


def of(url: URL, on_lock: Callable[[float], None]) -> Engine:
    """The engine of a file, which is made where it is missing; ``on_lock`` is told how many seconds each
    writing transaction waited."""
    file = file_of(url)
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
    event.listen(engine, "do_connect", functools.partial(_open_existing, file.as_uri()))
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", functools.partial(_begin, on_lock))
    return engine


def log_ahead(engine: Engine) -> None:
    """Turn on WAL mode, which SQLite keeps in the file."""
    with contextlib.closing(engine.raw_connection()) as connection:
        driver: Any = connection.driver_connection
        if driver.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            driver.execute("PRAGMA journal_mode=WAL")


def keep_to_file(engine: Engine) -> None:
    """Refuse transactions while the path leads to another file than the one that was opened, or to none:
    connections that are open would write to a file that no name leads to, and new ones to another."""
    file = file_of(engine.url)
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


def _open_existing(
    uri: str, _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]
) -> None:
    # NOTE: SQLite would make a file anew that was removed a moment ago.
    arguments[0], options["uri"] = f"{uri}?mode=rw", True


def _prepare(connection: Any, _record: Any) -> None:
    # NOTE: without this the driver begins by itself, too late, and commits before a CREATE TABLE.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(on_lock: Callable[[float], None], connection: Connection) -> None:
    # NOTE: a transaction that reads first and writes later fails at once when another wrote in
    # between, however long its timeout; so writers take the lock at the start.
    driver: Any = connection.connection.dbapi_connection
    options = connection.get_execution_options()
    reads, wait_s = bool(options.get(READ)), options.get(WAIT_S, BUSY_SECONDS)
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


def is_busy(error: BaseException | None) -> bool:
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
            if not is_busy(error):
                break
        time.sleep(min(left, random.uniform(0.5, 1.5) * pause))
        pause = min(1.2 * pause, _LONGEST_PAUSE_S)
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # for SQLAlchemy to raise


class Changes:
    """Reads SQLite's ``data_version``, which takes microseconds; PostgreSQL has no counterpart.

    Safe to share between threads.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tells = engine.dialect.name == "sqlite"
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
