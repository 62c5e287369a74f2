"""Config sets as a client receives them: from a service, or from a published tree on any file server.

A published tree (``tilewright publish``) has the paths of the service. Only its index ever changes::

    config-sets/current      the index: the digest of the set of each device class
    config-sets/sha256:...   a config set, after a line with the service's signature
    artifacts/...            a kernel
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Self

from tilewright.errors import ArtifactError
from tilewright.http.calls import ONE_BYTES, Reply, path_of
from tilewright.schema.config_set import ConfigSet, claimed_names
from tilewright.trust import HEADER, SERVED_HEADER, About, ServiceKey, Signature, statement

INDEX = path_of("config-sets", "current")
PUBLISHED = re.compile(rf"{INDEX}|/config-sets/sha256:[0-9a-f]{{64}}|/artifacts/[0-9a-f]{{64}}")
_FORMAT = 1
_FIRST = b'{"published":'
_SIGNED = b"ed25519:"


def set_path(digest: str) -> str:
    """The path of a config set."""
    return path_of("config-sets", digest)


def kernel_path(digest: str) -> str:
    """The path of a kernel."""
    return path_of("artifacts", digest)


@dataclasses.dataclass(frozen=True, slots=True)
class Index:
    """The index of a published tree.

    Attributes:
        sets: the digest of the config set of each device class.
        served: serial and signature of each, as the service told them in a header; a service of an earlier
            release told none.
    """

    sets: Mapping[str, str]
    served: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The file of the index."""
        told = {"published": _FORMAT, "served": dict(self.served), "sets": dict(self.sets)}
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return f"{text}\n".encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The inverse of :meth:`to_bytes`.

        Raises:
            ArtifactError: it is damaged, or of a newer release.
        """
        if len(content) > ONE_BYTES:  # it is not signed, and has some 400 bytes a class
            raise ArtifactError(f"an index has at most {ONE_BYTES} bytes, got {len(content)}; check the URL")
        try:
            raw: Any = json.loads(content)
            version, sets, served = raw["published"], dict(raw["sets"]), dict(raw.get("served", {}))
            if version != _FORMAT:
                raise ArtifactError(f"a newer release published it (format {version}); upgrade the client")
            if not all(isinstance(text, str) for text in (*sets.values(), *served.values())):
                raise ValueError("digests and signatures must be text")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(
                f"the index is damaged ({error!r}); use 'tilewright publish' again"
            ) from error
        return cls(sets, served)


@dataclasses.dataclass(frozen=True, slots=True)
class SetAnswer:
    """A config set as received.

    Attributes:
        config_set: checked against its digest, and against the key of the service.
        content: its bytes.
        signature: the text of the service's signature.
        published: whether it came from a published tree.
        served: the serial under which it is served, with its signature, as the service told them; empty from
            an earlier release.
    """

    config_set: ConfigSet
    content: bytes
    signature: str
    published: bool = False
    served: str = ""

    @classmethod
    def read(cls, reply: Reply, key: ServiceKey, digest: str | None = None, newest: int = 0) -> Self:
        """The set in an answer; ``newest`` as for :meth:`ServiceKey.check_served` where no digest is given.

        Raises:
            ArtifactError: what arrived does not match its digest, or ``digest`` if given.
            TrustError: the key did not sign it, or it is older than what the service was seen to serve.
        """
        content, signature = reply.content, reply.headers.get(HEADER.lower(), "")
        published = not signature and content.startswith(_SIGNED)
        if published:
            signature, content = split(content)
        found = signed_set(content, signature, key, digest)
        key.check(signature, statement(About.CONFIG_SET, found.device_class, found.digest))
        served = reply.headers.get(SERVED_HEADER.lower(), "")
        if digest is None:
            key.check_served(served, found.device_class, found.digest, newest)
        return cls(found, content, signature, published, served)

    def of_class(self, device_class: str) -> Self:
        """The same, of a class whose serials were compared.

        Raises:
            ArtifactError: it is of another class.
        """
        found = self.config_set.device_class
        if found != device_class:
            raise ArtifactError(f"a config set of {found} was sent for {device_class}; check the URL")
        return self

    @property
    def etag(self) -> str:
        """The ETag with which ``current_set`` answers None as long as this set is served."""
        return f'"{self.config_set.digest}"'

    @property
    def key(self) -> str:
        """The public key that signed it."""
        return Signature.parse(self.signature).key

    def to_file(self) -> bytes:
        """The set with its signature, as caches and published trees keep it."""
        return f"{self.signature}\n".encode() + self.content


def signed_set(
    content: bytes, signature: str, key: ServiceKey, digest: str | None = None, *, first: bool = True
) -> ConfigSet:
    """A set whose signature was checked before its content was parsed, so that who never saw one costs
    nothing; ``first`` as for :meth:`ServiceKey.verify`.

    Raises:
        ArtifactError: the content does not match its digest, or ``digest`` if given.
        TrustError: the key did not sign it.
    """
    claimed = claimed_names(content)
    key.verify(signature, statement(About.CONFIG_SET, *claimed), first=first)
    found = ConfigSet.from_bytes(content, digest)
    if (found.device_class, found.digest) != claimed:
        raise ArtifactError("a config set names two device classes or digests; fetch it again")
    return found


def split(content: bytes) -> tuple[str, bytes]:
    """The signature and the set in bytes that :meth:`SetAnswer.to_file` wrote; neither is checked."""
    signature, _, found = content.partition(b"\n")
    return signature.decode("ascii", "replace"), found


def is_index(reply: Reply) -> bool:
    """Whether an answer is the index of a published tree; a service answers with a set instead."""
    return HEADER.lower() not in reply.headers and reply.content.startswith(_FIRST)
