"""``DeviceLock``: one process of a machine at a time measures on a device."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from tilewright.errors import DeviceUnavailable
from tilewright.trust import without_waiting

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_DIGITS = 10  # of a process id


class DeviceLock:
    """The lock of a device, which ends with the process that holds it, however that ends.

    It is a lock (``flock``) on a file in a folder that all users of the machine share. The file stays and
    holds the process id of the last holder. The processes that a holder starts do not inherit the lock.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        """``identity`` tells the device from every other one of the machine."""
        self._path = folder / f"tilewright-device-{identity}.lock"
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock unless another holds it; True if it is held now.

        Raises:
            DeviceUnavailable: the file cannot be opened or locked, or is no file that has this name alone.
        """
        if self._file is not None:
            return True
        file = self._open()
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            # NOTE: another user may have given a file of ours this name, and what is in it would be lost.
            os.close(file)
            raise DeviceUnavailable(f"{self._path} is no lock of its own; remove it")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError as error:
            os.close(file)
            raise DeviceUnavailable(
                f"cannot lock {self._path}: {error.strerror}; set TILEWRIGHT_LOCK_DIR to a folder of a file"
                " system with locks (flock)"
            ) from error
        with contextlib.suppress(OSError):  # the folder is full: the lock holds without the process id
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        self._file = file
        return True

    def holder(self) -> str:
        """The process id of the last holder, or ``unknown``. One in another container has another id here."""
        # NOTE: any user may have left something else in its place: a pipe, or what fills the memory.
        text = b""
        with contextlib.suppress(OSError):
            file = without_waiting(str(self._path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.pread(file, _MOST_DIGITS + 1, 0)
            finally:
                os.close(file)
        return text.decode() if text.isdigit() and len(text) <= _MOST_DIGITS else "unknown"

    def release(self) -> None:
        """Give the lock up if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                # NOTE: Linux refuses O_CREAT for a file of another user in a folder that all may write to.
                with contextlib.suppress(FileNotFoundError):
                    return os.open(self._path, _FLAGS)
                with contextlib.suppress(FileExistsError):
                    file = os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
                    os.fchmod(file, 0o666)  # despite the umask: any user may hold it next
                    return file
        except OSError as error:
            raise DeviceUnavailable(
                f"cannot open {self._path}: {error.strerror}; set TILEWRIGHT_LOCK_DIR to a folder that every"
                " service of this machine may write to"
            ) from error
