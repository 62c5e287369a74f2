"""The body of an import, in a file of no name while it is received and read."""

from __future__ import annotations

import contextlib
import errno
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tilewright.errors import TilewrightError
from tilewright.trust import private_folder

log = logging.getLogger("tilewright.service")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoRoom(TilewrightError):
    """The body of an import cannot be kept.

    Attributes:
        is_full: the disk has no space; otherwise the folder cannot be written to.
    """

    def __init__(self, message: str, *, is_full: bool) -> None:
        super().__init__(message)
        self.is_full = is_full


class Spool:
    """Keeps what it is given in a file of no name in a folder, which is made where it is missing.

    Raises:
        NoRoom: by its start, and by each method: the folder cannot be written to, or its disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._as_no_room():
            private_folder(folder)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what is left in its buffer, of a disk that is full
            self._file.close()

    def write(self, data: bytes) -> None:
        """Add bytes at the end."""
        with self._as_no_room():
            self._file.write(data)

    def whole(self) -> IO[bytes]:
        """The file with all that was written, at its start."""
        with self._as_no_room():
            self._file.seek(0)
        return self._file

    @contextlib.contextmanager
    def _as_no_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.warning("imports cannot be kept in %s: %s", self._folder, error.strerror)
            if error.errno in _FULL:
                raise NoRoom(
                    "the disk that keeps imports (TILEWRIGHT_CACHE_DIR) is full; make space and repeat it",
                    is_full=True,
                ) from error
            raise NoRoom(
                f"imports cannot be kept ({error.strerror}); allow writing to the folder that the log names,"
                " or set TILEWRIGHT_CACHE_DIR to one that may be written",
                is_full=False,
            ) from error
