"""Publishes the config sets and kernels of a service as files for clients to start from, see
:mod:`tilewright.http.sets`."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from tilewright import Client
from tilewright.errors import ArtifactError, ServiceError, TilewrightError
from tilewright.http.result_endpoints import following
from tilewright.http.sets import INDEX, Index, SetAnswer, kernel_path, set_path
from tilewright.trust import served_serial

_NOTHING_TUNED = 404
_PART = 100  # kernels that are in memory at once
_PAGE = 1000
_INDEX_BYTES = 1 << 24


class NothingToPublish(TilewrightError):
    """The service serves no config set; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What :func:`publish` wrote: the number of new config sets and kernels, and their bytes. ``served`` has
    the digest of the set of each device class. ``kept`` has the classes whose set in the tree is later and
    stays."""

    sets: int
    kernels: int
    bytes: int
    served: dict[str, str]
    kept: list[str]


def publish(client: Client, folder: Path) -> Written:
    """Bring a published tree to what the service serves now.

    Files are added and none is removed; each appears whole, under its name, and the index last. So readers
    find the tree as it was or as it is now. Several processes may publish to a tree at once: the later set of
    a device class stays, in whatever order they finish.

    Raises:
        NothingToPublish: the service serves nothing; the tree stays as it is.
        ServiceError, ServiceUnreachable: the service refused or did not answer.
        TilewrightError: the folder cannot be written; the message names the file.
    """
    found = [answer for name in sorted(_classes(client)) if (answer := _current(client, name))]
    if not found:
        raise NothingToPublish(f"{client.url} serves no config set yet; tune first")
    try:
        with _lock_file(folder) as lock:
            sizes = [size for answer in found for size in _add_kernels(client, folder, answer)]
            contents = {set_path(answer.config_set.digest): answer.to_file() for answer in found}
            new = [content for path, content in contents.items() if _write(folder, path, content)]
            fcntl.flock(lock, fcntl.LOCK_EX)  # others change no index meanwhile
            sets, served, kept = _merged(_index(folder), found)
            _write(folder, INDEX, Index(sets, served).to_bytes())
    except OSError as error:
        where, why = error.filename or folder, error.strerror or error
        raise TilewrightError(
            f"cannot publish: {where}: {why}; use a folder that you may write to"
        ) from error
    return Written(len(new), len(sizes), sum(sizes) + sum(map(len, new)), sets, kept)


@contextlib.contextmanager
def _lock_file(folder: Path) -> Iterator[int]:
    """The file to lock before the index is changed, open; so a lock ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    path, flags = folder / ".publishing", os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except PermissionError:
        file = os.open(path, os.O_RDONLY | flags)  # another user's
    try:
        yield file
    finally:
        os.close(file)


def _index(folder: Path) -> Index:
    """The index of a tree; an empty one where there is none that can be read."""
    if 0 < (_size(folder, INDEX) or 0) <= _INDEX_BYTES:  # not what never ends
        with contextlib.suppress(OSError, ArtifactError):
            return Index.from_bytes(Path(f"{folder}{INDEX}").read_bytes())
    return Index({})


def _merged(before: Index, found: list[SetAnswer]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """The sets and serials of the new index, and the classes whose set in the index is later.

    The new index has the sets that were found. It keeps a set of the same signer that is later than the one
    found, or whose class was not found.
    """
    signers, names = {answer.key for answer in found}, {answer.config_set.device_class for answer in found}
    sets, served, kept = dict[str, str](), dict[str, str](), list[str]()
    for name, digest in before.sets.items():
        header = before.served.get(name, "")
        if name not in names and any(served_serial(header, name, digest, key) for key in signers):
            sets[name], served[name] = digest, header
    for answer in found:
        name = answer.config_set.device_class
        digest, header = answer.config_set.digest, answer.served
        there, older = before.sets.get(name, ""), before.served.get(name, "")
        # NOTE: of other keys too where it is not checked: a stranger's serial would keep the tree as it is.
        if served_serial(older, name, there, answer.key) > served_serial(header, name, digest, answer.key):
            kept.append(name)
            digest, header = there, older
        sets[name] = digest
        if header:
            served[name] = header
    return sets, served, kept


def _classes(client: Client) -> set[str]:
    """The device classes that have a winner, or had one: those have an empty set."""
    winners = [
        winner.device_class
        for arch in client.config_list(arch="none", limit=1).archs
        for winner in client.configs(arch=arch)
    ]
    return {*winners, *_snapshots(client)}


def _snapshots(client: Client) -> Iterator[str]:
    cursor: str | None = None
    cursors = set[str]()
    while True:
        page = client.config_sets(limit=_PAGE, cursor=cursor)
        yield from (item.device_class for item in page.items)
        cursor = following(page, cursors)
        if cursor is None:
            return


def _current(client: Client, device_class: str) -> SetAnswer | None:
    try:
        return client.current_set(device_class)
    except ServiceError as error:
        if error.status == _NOTHING_TUNED:
            return None
        raise


def _add_kernels(client: Client, folder: Path, answer: SetAnswer) -> Iterator[int]:
    """Write the kernels of a set that are missing or were cut short; gives the bytes of each."""
    wanted = {entry.artifact: entry.artifact_bytes for entry in answer.config_set.entries if entry.may_run}
    missing = [name for name, size in wanted.items() if _size(folder, kernel_path(name)) != size]
    for first in range(0, len(missing), _PART):
        kernels = client.artifacts(answer.config_set.digest, missing[first : first + _PART])
        for name, kernel in kernels.items():
            if kernel.digest != name:
                raise TilewrightError(f"{client.url} is of a newer release; use its own 'tilewright publish'")
            content = kernel.to_bytes()
            _write(folder, kernel_path(name), content)
            yield len(content)


def _size(folder: Path, path: str) -> int | None:
    """The bytes of a file; None if there is none."""
    try:
        found = os.stat(f"{folder}{path}")
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _write(folder: Path, path: str, content: bytes) -> bool:
    """Write a file at once, in the place of what is there; False if it is there already."""
    target = Path(f"{folder}{path}")
    if _size(folder, path) == len(content) and target.read_bytes() == content:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".new-{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
    return True
