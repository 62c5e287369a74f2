"""``beside``: a SQLite file that replaces another one, or nothing, once it is whole."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import OperationalError

from tilewright.errors import naming
from tuner.store.database import StoreError
from tuner.store.engines.full_disk import SPACE

_WAIT = "try again once no other process writes to it"
_FOLDER = "see that its folder takes files"
# By the code of SQLite: https://www.sqlite.org/rescode.html
_ADVICE = {
    sqlite3.SQLITE_FULL: SPACE,
    sqlite3.SQLITE_IOERR: SPACE,  # of a quota or a limit on the length of files, too
    sqlite3.SQLITE_BUSY: _WAIT,
    sqlite3.SQLITE_LOCKED: _WAIT,
    sqlite3.SQLITE_CANTOPEN: _FOLDER,
    sqlite3.SQLITE_READONLY: _FOLDER,
}


@contextlib.contextmanager
def beside(file: Path) -> Iterator[Path]:
    """A SQLite file to be made in the folder of another one, which errors of the system name; its remains are
    removed.

    Raises:
        StoreError: SQLite cannot write it.
    """
    parent, prefix = file.resolve().parent, ".tilewright-"
    with naming(file, parent / prefix), tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        try:
            yield Path(folder) / "copy.db"
        except (OperationalError, sqlite3.OperationalError) as error:
            reason = getattr(error, "orig", error)
            advice = _ADVICE.get(getattr(reason, "sqlite_errorcode", 0) & 0xFF)
            if advice is None:
                raise  # a wrong statement, or an error of PostgreSQL
            raise StoreError(f"{file} cannot be written: {reason}; {advice}, or use another file") from error
