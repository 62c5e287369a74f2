"""Whether anything was committed to a database since the last look, told without a transaction."""

from __future__ import annotations

import threading
from typing import Any

from tuner.store.database import Store


class Changes:
    """Asks SQLite for its ``data_version``, which takes microseconds; PostgreSQL has nothing like it.

    Safe to share between threads.
    """

    def __init__(self, store: Store) -> None:
        self._engine = store.engine
        self._tells = store.engine.dialect.name == "sqlite"
        # NOTE: a connection of its own that never writes, since SQLite tells of the commits of others only.
        self._connection: Any = None
        self._lock = threading.Lock()

    def stamp(self) -> int | None:
        """Another number after each commit, by whichever process; None where the database cannot tell."""
        if not self._tells:
            return None
        with self._lock:
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            row = self._connection.driver_connection.execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
