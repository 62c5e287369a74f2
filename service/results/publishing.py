"""Publishes what a service serves for start-up as files, see :mod:`tilewright.http.sets`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from tilewright import Client
from tilewright.errors import ServiceError, TilewrightError
from tilewright.http.sets import INDEX, Index, SetAnswer, kernel_path, set_path

_NOTHING_TUNED = 404
_PART = 100  # kernels that are in memory at once
_PAGE = 1000


class NothingToPublish(TilewrightError):
    """The service serves no config set; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What :func:`publish` wrote: how many new config sets and kernels, and their bytes; ``served`` has the
    digest of the set of each device class."""

    sets: int
    kernels: int
    bytes: int
    served: dict[str, str]


def publish(client: Client, folder: Path) -> Written:
    """Bring a published tree to what the service serves now.

    Files are added and none is removed; each appears whole, under its name, and the index last. So readers
    find the tree as it was or as it is now.

    Raises:
        NothingToPublish: the service serves nothing; the tree stays as it is.
        ServiceError, ServiceUnreachable: the service refused or did not answer.
    """
    found = [answer for name in sorted(_classes(client)) if (answer := _current(client, name))]
    if not found:
        raise NothingToPublish(f"{client.url} serves no config set yet; tune first")
    sizes = [size for answer in found for size in _add_kernels(client, folder, answer)]
    contents = {set_path(answer.config_set.digest): answer.to_file() for answer in found}
    new = [content for path, content in contents.items() if _write(folder, path, content)]
    served = {answer.config_set.device_class: answer.config_set.digest for answer in found}
    serials = {answer.config_set.device_class: answer.served for answer in found if answer.served}
    _write(folder, INDEX, Index(served, serials).to_bytes())
    return Written(len(new), len(sizes), sum(sizes) + sum(map(len, new)), served)


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
    while True:
        page = client.config_sets(limit=_PAGE, cursor=cursor)
        yield from (item.device_class for item in page.items)
        cursor = page.next
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
    wanted = {
        entry.artifact: entry.artifact_bytes for entry in answer.config_set.entries if not entry.use_vendor
    }
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
