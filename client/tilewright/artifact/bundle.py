"""Bundles: several artifacts in one body.

Each is its SHA-256 (32 bytes), its length (u64, little-endian) and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError

MEDIA_TYPE = "application/octet-stream"
_HEAD = struct.Struct("<32sQ")
HEAD_BYTES = _HEAD.size


def head(digest: str, length: int) -> bytes:
    """The bytes before an artifact of ``length`` bytes."""
    return _HEAD.pack(bytes.fromhex(digest), length)


def frames(content: bytes) -> Iterator[tuple[str, memoryview]]:
    """The digests of a bundle with their bytes, not yet checked against each other.

    Raises:
        ArtifactError: the bundle ends early.
    """
    view, at = memoryview(content), 0
    while at < len(view):
        if len(view) - at < HEAD_BYTES:
            raise ArtifactError("the bundle ends in the middle of a header; fetch it again")
        raw, length = _HEAD.unpack_from(view, at)
        at += HEAD_BYTES
        if length > len(view) - at:
            raise ArtifactError(f"the bundle ends {length - (len(view) - at)} bytes early; fetch it again")
        yield raw.hex(), view[at : at + length]
        at += length


def unpack(content: bytes) -> dict[str, Artifact]:
    """Every artifact of a bundle, by digest and checked against it.

    Raises:
        ArtifactError: the bundle ends early or an artifact is damaged.
    """
    return {digest: Artifact.from_bytes(bytes(data), digest) for digest, data in frames(content)}
