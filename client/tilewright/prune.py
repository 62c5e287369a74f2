"""Keeps the client's cache on disk within bounds, whoever else uses it meanwhile.

A config set is used when a process starts with it, looks for a newer one or, offline, reads a kernel of it;
that, and being named by a set that is kept, is noted in a file's time of modification, at most once a day.
Every step is one operation on one file, and a file that is gone is a miss that is fetched again, so any
number of processes may prune, read and write at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from tilewright.errors import InvalidProblem

DAY_S = 86_400.0
UNNAMED_S = 7 * DAY_S  # NOTE: a process may still run with the set before, and load kernels of it
PAUSE_S = 3600.0
FETCH_S = 3600.0  # NOTE: kernels are written before the set that names them
_LEAST_DAYS = 2  # NOTE: a set in constant use was noted up to a day and a look ago
_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept, for how long.

    Attributes:
        size: bytes in all; the set that was used last stays even where it alone is larger.
        days: since a set was last used; at least 2.

    Raises:
        InvalidProblem: the size is negative, or the days are too few.
    """

    size: int = 2 * 2**30
    days: float = 30.0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidProblem(f"cache_bytes must not be negative, got {self.size}")
        if not self.days >= _LEAST_DAYS:  # also where it is no number
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
    """Whether nobody pruned for an hour, so that the caller is to; never where nothing can be written."""
    stamp = root / "pruned"
    try:
        if stamp.exists() and time.time() - stamp.stat().st_mtime < PAUSE_S:
            return False
        stamp.touch()
    except OSError:
        return False
    return True


def note_use(path: Path, now: float) -> None:
    """Note that a file was used, unless that was done within the last day."""
    with contextlib.suppress(OSError):
        if now - path.stat().st_mtime > DAY_S:
            os.utime(path, (now, now))


def prune(root: Path, bounds: Bounds, now: float) -> None:
    """Remove what is out of bounds; files that cannot be removed stay.

    Args:
        root: holds config sets in ``named``, and kernels in folders of two digits by their digests.
        bounds: what may stay.
        now: seconds since the epoch.
    """
    sets: list[tuple[_File, set[str]]] = []
    for file in sorted(_entries(root / "named", now), key=lambda file: file.used):
        if now - file.used > bounds.days * DAY_S:
            file.remove()
        else:
            sets.append((file, _digests(file.path)))
    kernels = {file.path.name: file for folder in root.glob("??") for file in _entries(folder, now)}
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
    """Remove the longest unused until the rest fits: ``unnamed`` kernels, then sets with theirs."""
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
    """The files of a folder; what a writer left unfinished a day ago is removed on the way."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            try:
                status = path.stat()
            except OSError:  # another process removed it
                continue
            file = _File(path, status.st_size, status.st_mtime)
            if not path.name.startswith(".new-"):
                yield file
            elif now - file.used > DAY_S:
                file.remove()


def _digests(path: Path) -> set[str]:
    """All that looks like a digest in a set: its kernels and a few other names, which do no harm."""
    try:
        return {found.decode() for found in _DIGEST.findall(path.read_bytes())}
    except OSError:
        return set()
