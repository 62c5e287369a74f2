"""The client's cache on disk: config sets and artifacts, kept within bounds.

A process uses a config set when it starts with the set, looks for a newer one or, offline, reads one of its
kernels. The modification time of a file is the time of its last use, or of the last use of a kept set that
names it; it is updated at most once a day. Every step is one operation on one file, and a missing file is
fetched again, so any number of processes may prune, read and write at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from platformdirs import user_cache_path

from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, InvalidProblem
from tilewright.schema.config_set import is_digest
from tilewright.trust import private_folder, without_waiting

DAY_S = 86_400.0
UNNAMED_S = 7 * DAY_S  # NOTE: a process may still run with the previous set, and load its kernels
PAUSE_S = 3600.0
FETCH_S = 3600.0  # NOTE: kernels are written before the set that names them
KERNEL_BYTES = 256 * 2**20  # of kernels that are loaded
_LEAST_DAYS = 2  # NOTE: the noted use of a set in constant use may be a day and a refresh interval old
_MOST_BYTES = 2**27  # twice the largest answer of a service
_DIGEST = re.compile(rb"[0-9a-f]{64}")
# Errors that last; another one, such as too many open files, says nothing about a file.
_LASTING = (FileNotFoundError, NotADirectoryError, PermissionError)


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of the cache in size and time.

    Attributes:
        size: most bytes in all; the set that was used last stays even if it is larger.
        days: days after its last use for which a set is kept; at least 2.

    Raises:
        InvalidProblem: the size is negative, or the days are too few.
    """

    size: int = 2 * 2**30
    days: float = 30.0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidProblem(f"cache_bytes must not be negative, got {self.size}")
        if not self.days >= _LEAST_DAYS:  # also if it is no number
            raise InvalidProblem(
                f"cache_days must be at least {_LEAST_DAYS}, as use is noted once a day; got {self.days}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size: int
    used: float

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def due(root: Path) -> bool:
    """Whether no process pruned within the last hour; False if nothing can be written."""
    stamp = root / "pruned"
    try:
        with contextlib.suppress(FileNotFoundError):
            # NOTE: a stamp of the future is one of a clock that was wrong.
            if 0 <= time.time() - stamp.lstat().st_mtime < PAUSE_S:
                return False
        descriptor = without_waiting(str(stamp), os.O_WRONLY | os.O_CREAT)
        os.utime(descriptor)
        os.close(descriptor)
    except OSError:
        return False
    return True


def note_use(path: Path, now: float) -> None:
    """Note that a file is used, unless that was noted within the last day."""
    with contextlib.suppress(OSError):
        if now - path.stat().st_mtime > DAY_S:
            os.utime(path, (now, now))


def prune(root: Path, bounds: Bounds, now: float) -> None:
    """Remove files that are out of bounds; files that cannot be removed stay.

    Args:
        root: folder with config sets in ``named``, and kernels by digest in folders of two digits. Other
            entries stay, and no symbolic link is followed.
        bounds: the bounds.
        now: seconds since the epoch.

    Raises:
        OSError: a set cannot be read now; no kernel is removed, because the set may name it.
    """
    sets: list[tuple[_File, set[str]]] = []
    for file in sorted(_entries(root / "named", now), key=lambda file: file.used):
        if now - file.used > bounds.days * DAY_S:
            file.remove()
        else:
            sets.append((file, _digests(file.path)))
    kernels: dict[str, _File] = {}
    for folder in root.glob("[0-9a-f][0-9a-f]"):
        with contextlib.suppress(OSError):  # what lies in it stays
            kernels |= {} if folder.is_symlink() else {file.path.name: file for file in _entries(folder, now)}
    named = set[str]().union(*(digests for _, digests in sets)) & kernels.keys()
    for digest in named:
        note_use(kernels[digest].path, now)
    unnamed = sorted((kernels[digest] for digest in kernels.keys() - named), key=lambda file: file.used)
    for file in unnamed:
        if now - file.used > UNNAMED_S:
            kernels.pop(file.path.name).remove()
    loose = [file for file in unnamed if FETCH_S < now - file.used <= UNNAMED_S]
    _shrink(bounds.size, sets, kernels, loose)


def _shrink(
    size: int, sets: list[tuple[_File, set[str]]], kernels: dict[str, _File], unnamed: list[_File]
) -> None:
    """Remove files, the longest unused first, until the rest fits: ``unnamed`` kernels, then sets with their
    kernels."""
    left = sum(file.size for file, _ in sets) + sum(file.size for file in kernels.values())
    while left > size and (unnamed or len(sets) > 1):
        if unnamed:
            gone = [unnamed.pop(0)]
        else:
            file, digests = sets.pop(0)
            alone = digests.difference(*(others for _, others in sets)) & kernels.keys()
            gone = [file, *(kernels[digest] for digest in alone)]
        for file in gone:
            file.remove()
            kernels.pop(file.path.name, None)
            left -= file.size


def _entries(folder: Path, now: float) -> Iterator[_File]:
    """The files of a folder that the cache made; temporary files older than a day are removed.

    Raises:
        OSError: the folder cannot be read now.
    """
    with contextlib.suppress(*_LASTING):
        for path in list(folder.iterdir()):
            try:
                status = path.lstat()
            except OSError:  # another process removed it
                continue
            file = _File(path, status.st_size, status.st_mtime)
            if is_digest(path.name) and stat.S_ISREG(status.st_mode):
                yield file
            elif path.name.startswith(".new-") and now - file.used > DAY_S:
                file.remove()


def _digests(path: Path) -> set[str]:
    """Every text in a set that looks like a digest: those of its kernels, and a few harmless others.

    Raises:
        OSError: the set cannot be read now.
    """
    try:
        return {found.decode() for found in _DIGEST.findall(_content(path) or b"")}
    except _LASTING:
        return set()


def _content(path: Path) -> bytes | None:
    """The bytes of a file; None if it is no file, or larger than what the cache keeps.

    Raises:
        OSError: it is missing, or cannot be read now.
    """
    try:
        with open(path, "rb", opener=without_waiting) as file:
            status = os.fstat(file.fileno())
            kept = stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES
            return file.read() if kept else None
    except OSError:
        if stat.S_ISREG(path.lstat().st_mode):
            raise
        return None


VERSION = "v1"


def default_folder() -> Path:
    """The folder for caches of this user on this platform."""
    return user_cache_path("tilewright") / "client"


class DiskCache:
    """Entries under ``folder``, in a subfolder for this version of the layout.

    Raises:
        ArtifactError: a name is not a digest, and could name a file elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder / VERSION

    def get(self, digest: str) -> bytes | None:
        """The content with this SHA-256; None if it is missing, or damaged: then it is removed.

        Raises:
            OSError: it cannot be read now, for instance while no file descriptor is free; it may be sound.
        """
        try:
            content = _content(self._path(digest))
        except FileNotFoundError:
            return None
        if content is None or hashlib.sha256(content).hexdigest() != digest:
            self.drop(digest)  # a damaged file must not count as present
            return None
        return content

    def has(self, digest: str) -> bool:
        """Whether an entry exists, without reading it; False if its folder may not be read."""
        return os.path.exists(self._path(digest))

    def put(self, digest: str, content: bytes) -> bool:
        """Store content under its SHA-256; False if it could not be written."""
        return self._write(self._path(digest), content)

    def drop(self, digest: str) -> None:
        """Remove an entry."""
        with contextlib.suppress(OSError):
            self._path(digest).unlink()

    def named(self, name: str) -> bytes | None:
        """The content stored under a name; None if there is none, or it cannot be read now."""
        try:
            return _content(self._pointer(name))
        except OSError:
            return None

    def name(self, name: str, content: bytes) -> bool:
        """Store content under a name, replacing earlier content; False if it could not be written."""
        return self._write(self._pointer(name), content)

    def note_use(self, name: str, content: bytes) -> None:
        """Note that the content under a name is in use, so that it stays; store it again if it was
        removed."""
        pointer = self._pointer(name)
        if os.path.exists(pointer):
            note_use(pointer, time.time())
        else:
            self._write(pointer, content)

    def prune(self, bounds: Bounds) -> None:
        """Remove files that are out of bounds, unless a process did so within the last hour."""
        if due(self._root):
            with contextlib.suppress(OSError):  # again in an hour
                prune(self._root, bounds, time.time())

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ArtifactError(
                f"the cache names artifacts by a SHA-256: give 64 hexadecimal digits, not {digest[:80]!r}"
            )
        return self._root / digest[:2] / digest

    def _pointer(self, name: str) -> Path:
        return self._root / "named" / hashlib.sha256(name.encode()).hexdigest()

    def _write(self, path: Path, content: bytes) -> bool:
        beside = path.with_name(f".new-{secrets.token_hex(8)}")
        try:
            with open(self._created(beside), "wb") as file:
                file.write(content)
            os.replace(beside, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            return False
        return True

    def _created(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            private_folder(path.parent)
            return os.open(path, flags, 0o600)


class ArtifactStore:
    """Artifacts by digest, on disk and in memory.

    Safe to share between threads: each step is one operation of a dict or a file.
    """

    def __init__(self, disk: DiskCache) -> None:
        self._disk = disk
        self._memory: dict[str, bytes] = {}
        self._unusable: set[str] = set()  # on disk at the last try; to be fetched, if there is a service

    def missing(self, wanted: Iterable[str]) -> list[str]:
        """The digests that are neither in memory nor, as far as is known, sound on disk."""
        absent = {name for name in wanted if name not in self._memory}
        return sorted(name for name in absent if name in self._unusable or not self._disk.has(name))

    def take(self, fetched: Mapping[str, bytes]) -> None:
        """Add artifacts in memory; :meth:`write` moves them to disk."""
        self._memory.update(fetched)

    def write(self, digests: Iterable[str]) -> None:
        """Move artifacts from memory to disk; those that cannot be written stay in memory."""
        for digest in digests:
            if self._disk.put(digest, self._memory[digest]):
                self._unusable.discard(digest)
                del self._memory[digest]

    def artifact(self, digest: str) -> Artifact | None:
        """A kernel, checked against its digest; None if it is missing, damaged, of an unknown version or
        cannot be read now."""
        try:
            content = self._memory.get(digest) or self._disk.get(digest)
        except OSError:  # NOTE: the file stays: without a service, only a later try can bring the kernel
            content = None
        if content is None:
            self._unusable.add(digest)
            return None
        self._unusable.discard(digest)
        try:
            return Artifact.from_bytes(content, digest)
        except ArtifactError:
            return None
