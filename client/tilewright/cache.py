"""The client's cache on disk: config sets and artifacts by their content, shared by many processes.

An entry is a file that is written beside its place and then renamed to it, so that no reader ever meets
half of one. Names are digests of contents and checked when read: a damaged file is a miss and is fetched
again. A folder that cannot be written to (read-only, full disk) costs the cache, never an answer. What nobody
uses any more goes, see :mod:`tilewright.prune`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path

from platformdirs import user_cache_path

from tilewright import prune
from tilewright.artifact import is_digest
from tilewright.errors import ArtifactError
from tilewright.prune import Bounds

VERSION = "v1"


def default_folder() -> Path:
    """Where the platform keeps a user's caches."""
    return user_cache_path("tilewright") / "client"


class DiskCache:
    """Entries under ``folder``, in a part of its own for this version of the layout.

    Raises:
        ArtifactError: from every method that takes a digest: it is none, and could name a file elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder / VERSION

    def get(self, digest: str) -> bytes | None:
        """The content with this SHA-256; None where there is none, or what is there is damaged."""
        content = self._read(self._place(digest))
        if content is None or hashlib.sha256(content).hexdigest() != digest:
            return None
        return content

    def has(self, digest: str) -> bool:
        """Whether there is an entry, without reading it."""
        return self._place(digest).exists()

    def put(self, digest: str, content: bytes) -> bool:
        """Keep a content under its SHA-256; False where it could not be written."""
        return self._write(self._place(digest), content)

    def drop(self, digest: str) -> None:
        """Forget an entry, for instance one that turned out to be damaged."""
        with contextlib.suppress(OSError):
            self._place(digest).unlink()

    def named(self, name: str) -> bytes | None:
        """What was last kept under a name; None where there is nothing."""
        return self._read(self._pointer(name))

    def name(self, name: str, content: bytes) -> bool:
        """Keep a content under a name, in place of the one before."""
        return self._write(self._pointer(name), content)

    def note_use(self, name: str, content: bytes) -> None:
        """Note that what is kept under a name is in use, so that it stays; where it went nevertheless,
        keep ``content`` again."""
        pointer = self._pointer(name)
        if os.path.exists(pointer):
            prune.note_use(pointer, time.time())
        else:
            self._write(pointer, content)

    def prune(self, bounds: Bounds) -> None:
        """Remove what is out of bounds, unless any process did so within the last hour."""
        if prune.due(self._root):
            prune.prune(self._root, bounds, time.time())

    def _place(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ArtifactError(f"the cache names artifacts by their SHA-256, not {digest[:80]!r}")
        return self._root / digest[:2] / digest

    def _pointer(self, name: str) -> Path:
        return self._root / "named" / hashlib.sha256(name.encode()).hexdigest()

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except OSError:
            return None

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
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)
