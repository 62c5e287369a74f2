"""The kernels at hand: on disk, and in memory as long as the disk does not have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.artifact import Artifact
from tilewright.cache import DiskCache
from tilewright.errors import ArtifactError


class Stock:
    """Artifacts by digest. Safe to share between threads: each step is one operation of a dict or a file."""

    def __init__(self, disk: DiskCache) -> None:
        self._disk = disk
        self._memory: dict[str, bytes] = {}

    def missing(self, wanted: Iterable[str]) -> list[str]:
        """Those that have to be fetched."""
        return sorted({name for name in wanted if name not in self._memory and not self._disk.has(name)})

    def take(self, fetched: Mapping[str, bytes]) -> None:
        """Have these at hand from now on; :meth:`write` them soon."""
        self._memory.update(fetched)

    def write(self, digests: Iterable[str]) -> None:
        """Move to disk what it takes."""
        for digest in digests:
            if self._disk.put(digest, self._memory[digest]):
                del self._memory[digest]

    def artifact(self, digest: str) -> Artifact | None:
        """A kernel, checked against its digest; None where it is not here, was damaged, or is of a version
        that cannot be read here."""
        content = self._memory.get(digest) or self._disk.get(digest)
        if content is None:
            self._disk.drop(digest)  # a damaged one must not count as being here
            return None
        try:
            return Artifact.from_bytes(content, digest)
        except ArtifactError:
            return None
