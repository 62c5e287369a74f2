"""Scripts and styles of the page, ours and vendored: read once, each at an address that names its bytes."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
from importlib.resources import files

_FOLDERS = ("static", "vendor")
_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@dataclasses.dataclass(frozen=True, slots=True)
class Asset:
    """A script, a style or an icon.

    Attributes:
        name: file name; unique over both folders.
        data, packed: its bytes, plain and by gzip.
        digest: the first 16 hex digits of the SHA-256 of its bytes.
        media_type: as browsers need it.
    """

    name: str
    data: bytes
    packed: bytes
    digest: str
    media_type: str

    @property
    def url(self) -> str:
        """Where the service has it; browsers may keep for ever what is there."""
        return f"/static/{self.digest}/{self.name}"

    @property
    def text(self) -> str:
        """What it says, for a page that is to stand alone."""
        return self.data.decode()


@functools.cache
def assets() -> dict[str, Asset]:
    """Every asset by its name."""
    found = [
        path
        for folder in _FOLDERS
        for path in files("service.web").joinpath(folder).iterdir()
        if path.name.rpartition(".")[2] in _TYPES
    ]
    return {path.name: _asset(path.name, path.read_bytes()) for path in found}


def _asset(name: str, data: bytes) -> Asset:
    kind = _TYPES[name.rpartition(".")[2]]
    digest = hashlib.sha256(data).hexdigest()[:16]
    return Asset(name, data, gzip.compress(data, 6, mtime=0), digest, kind)
