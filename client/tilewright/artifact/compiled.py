"""``Artifact``: a compiled kernel with its launch plan, as bytes named by their digest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from typing import Any

from tilewright.artifact.plan import LaunchPlan
from tilewright.errors import ArtifactError
from tilewright.schema.codec import decode_known, encode
from tilewright.schema.kernel import Resources

MAGIC = b"TILEWRT1"
_HEADER_LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled kernel with its launch plan, named by the digest of its bytes.

    Attributes:
        plan: how to launch it.
        resources: registers and shared memory.
        source_digest: SHA-256 of the kernel source with its include closure.
        compiler: name and version of the compiler.
        binary: the cubin or shared library.
    """

    plan: LaunchPlan
    resources: Resources
    source_digest: str
    compiler: str
    binary: bytes

    @property
    def header(self) -> dict[str, Any]:
        """Everything but the binary, as plain data."""
        return {
            "plan": self.plan.to_dict(),
            "resources": encode(self.resources),
            "source_digest": self.source_digest,
            "compiler": self.compiler,
        }

    def to_bytes(self) -> bytes:
        """The artifact as bytes: magic, header length, canonical JSON header, binary."""
        text = json.dumps(self.header, sort_keys=True, separators=(",", ":")).encode()
        return MAGIC + _HEADER_LENGTH.pack(len(text)) + text + self.binary

    @property
    def digest(self) -> str:
        """SHA-256 of :meth:`to_bytes` in hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes, digest: str | None = None) -> Artifact:
        """The artifact that :meth:`to_bytes` wrote, checked against ``digest`` if one is given.

        Raises:
            ArtifactError: the digest does not match or the bytes are not an artifact.
        """
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise ArtifactError(f"artifact does not match its digest {digest}; fetch it again")
        start = len(MAGIC) + _HEADER_LENGTH.size
        if data[: len(MAGIC)] != MAGIC or len(data) < start:
            raise ArtifactError("not a tilewright artifact: wrong magic; fetch it again")
        (length,) = _HEADER_LENGTH.unpack(data[len(MAGIC) : start])
        try:
            header = json.loads(data[start : start + length])
            json.dumps(header, ensure_ascii=False).encode()  # half a pair of surrogates is no text
            return cls(
                plan=LaunchPlan.from_dict(header["plan"]),
                resources=decode_known(Resources, header["resources"]),
                source_digest=_text(header["source_digest"]),
                compiler=_text(header["compiler"]),
                binary=data[start + length :],
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(f"damaged artifact header, fetch it again: {error!r}"[:500]) from error


def _text(value: Any) -> str:
    """A value that is a text."""
    if type(value) is not str:
        raise ValueError("must be text")
    return value
