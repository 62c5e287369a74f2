"""Whether the database can be used: what its errors mean, and a look at it once a second."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from enum import StrEnum
from pathlib import Path

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tilewright.errors import TilewrightError
from tuner.store.database import Store, StoreError, WritersBusy


class Outage(StrEnum):
    """Why a database refuses work that it would accept at another time."""

    FULL = "its disk is full"
    LOCKED = "another writer holds it"
    DOWN = "it does not answer"
    MOVED = "its file was removed or replaced; restart the service"


_SQLITE = {
    sqlite3.SQLITE_FULL: Outage.FULL,
    sqlite3.SQLITE_BUSY: Outage.LOCKED,
    sqlite3.SQLITE_LOCKED: Outage.LOCKED,
    sqlite3.SQLITE_IOERR: Outage.DOWN,
    sqlite3.SQLITE_CANTOPEN: Outage.DOWN,
    sqlite3.SQLITE_READONLY: Outage.DOWN,
    sqlite3.SQLITE_READONLY_DBMOVED: Outage.MOVED,
}
# By code, else by class of SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRES = {
    "53100": Outage.FULL,
    "55P03": Outage.LOCKED,
    "40P01": Outage.LOCKED,  # a deadlock, which ended one of its transactions
    "25P03": Outage.DOWN,  # this process was stopped in a transaction, which the server ended
    **dict.fromkeys(("08", "53", "57", "58"), Outage.DOWN),
}


def outage(error: Exception) -> Outage | None:
    """The outage behind an error of the database; None if repeating the work would not help."""
    if isinstance(error, WritersBusy):
        return Outage.LOCKED
    if not isinstance(error, DBAPIError):
        return Outage.DOWN if isinstance(error, PoolTimeout) else None
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return Outage.DOWN
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return _SQLITE.get(code, _SQLITE.get(code & 0xFF))
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        return Outage.DOWN if isinstance(error, OperationalError) else None
    return _POSTGRES.get(state, _POSTGRES.get(state[:2]))


def unusable(error: Exception, advice: str) -> StoreError:
    """What to raise if an error of the database ends a command or the start of the service."""
    reason = outage(error) or getattr(error, "orig", None) or error
    return StoreError(f"the database cannot be used: {reason}; {advice}")


_LOOK_S = 1.0
_LATE_S = 10.0
_FULL_S = 5.0  # for which a refusal counts
_LEAST_FREE_BYTES = 4 * 2**20
log = logging.getLogger("tilewright.health")


class DatabaseHealth:
    """Whether the database worked at the last look; a thread looks once a second.

    Asking for the state only reads memory, so it answers at once even while the database hangs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = _folder(store)
        self._found, self._at = "ok", time.monotonic()
        self._full_until = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database-health", daemon=True)

    @property
    def state(self) -> str:
        """``ok``, or what is wrong."""
        now = time.monotonic()
        if now - self._at > _LATE_S:
            return Outage.DOWN
        return Outage.FULL if now < self._full_until else self._found

    def note(self, found: Outage) -> None:
        """Note that a request met an outage. Only a full disk counts, because a look may not meet it."""
        if found is Outage.FULL:
            self._full_until = time.monotonic() + _FULL_S

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join(_LATE_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            found = self._look()
            if found != self._found:
                log.warning("the database: %s", found)
            self._found, self._at = found, time.monotonic()
            self._stopping.wait(_LOOK_S)

    def _look(self) -> str:
        try:
            schema = self._store.schema_state()
            if schema != "head":
                return f"its schema is {schema}"
            with self._store.begin() as session:
                session.connection()  # which takes the writer's lock of SQLite
            return "ok" if self._free_bytes() >= _LEAST_FREE_BYTES else Outage.FULL
        except Exception as error:
            # NOTE: the boundary of the thread: without it the database would be down until the next start.
            found = outage(error) or f"{Outage.DOWN} ({type(error).__name__})"
            if found != self._found and not isinstance(error, SQLAlchemyError | TilewrightError | OSError):
                log.exception("a look at the database failed; the next one is in %g s", _LOOK_S)
            return found

    def _free_bytes(self) -> float:
        if self._folder is None:
            return float("inf")
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize


def _folder(store: Store) -> Path | None:
    """The folder of a SQLite file; None for PostgreSQL."""
    url = store.engine.url
    return Path(url.database or "").absolute().parent if url.drivername == "sqlite" else None
