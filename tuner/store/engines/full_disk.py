"""``remedy``: what to do about an error of a file or a database."""

from __future__ import annotations

import errno
import sqlite3

SPACE = "make space on its disk"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The second as a file is opened, the third at a quota or a limit on the length of files.
_SQLITE_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE}
_POSTGRES_FULL = "53100"


def remedy(error: Exception, otherwise: str) -> str:
    """``SPACE`` if the error, or the one that SQLAlchemy wraps, says that a disk is full."""
    cause = getattr(error, "orig", None) or error
    is_full = (
        getattr(cause, "errno", None) in _FULL
        or getattr(cause, "sqlite_errorcode", None) in _SQLITE_FULL
        or getattr(cause, "sqlstate", None) == _POSTGRES_FULL
    )
    return SPACE if is_full else otherwise
