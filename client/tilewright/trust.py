"""Who vouches for a kernel: Ed25519 signatures of a service, and the key that a client takes them from.

A signature covers a statement of a few lines: what it is about, and names that follow from contents. The
digest of a config set follows from the digests of its kernels, so one signature vouches for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tilewright.errors import InvalidProblem, TrustError
from tilewright.lazy import LazyModule

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives.asymmetric import ed25519
else:
    exceptions = LazyModule("cryptography.exceptions")
    ed25519 = LazyModule("cryptography.hazmat.primitives.asymmetric.ed25519")

HEADER = "Tilewright-Signature"
SIGNATURE_LINE = b'{"kind":"signature",'  # how a line of an export begins that signs those before it
_KEY = re.compile(r"ed25519:([0-9a-f]{64})")
_SIGNATURE = re.compile(r"(ed25519:[0-9a-f]{64}):([0-9a-f]{128})")


class About(StrEnum):
    """What a statement is about; its names are, in this order, for

    Attributes:
        CONFIG_SET: a device class, and the digest of a set that it is served.
        ARTIFACT: the digest of a kernel.
        EXPORT: the digest of lines of an export.
    """

    CONFIG_SET = "config-set"
    ARTIFACT = "artifact"
    EXPORT = "export"


def statement(about: About, *names: str) -> bytes:
    """The bytes that are signed.

    Raises:
        ValueError: a name has a line break, and could read as two names.
    """
    lines = ("tilewright signature 1", about, *names)
    if any("\n" in line for line in lines):
        raise ValueError(f"a signed name must be one line, got {lines!r}")
    return "".join(f"{line}\n" for line in lines).encode()


def checked_key(text: str) -> str:
    """The text of a public key.

    Raises:
        InvalidProblem: it is none.
    """
    if not isinstance(text, str) or not _KEY.fullmatch(text):
        raise InvalidProblem(
            "a key reads ed25519: and 64 hexadecimal digits, as 'tilewright trust show' prints it;"
            f" got {text!r}"
        )
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A signature and the public key that it claims to be by; as text ``ed25519:KEY:SIGNATURE``, in hex."""

    key: str
    value: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of :func:`str`.

        Raises:
            TrustError: it is no signature.
        """
        found = _SIGNATURE.fullmatch(text)
        if found is None:
            raise TrustError(f"a signature reads ed25519: and two hexadecimal numbers, got {text[:80]!r}")
        return cls(found[1], bytes.fromhex(found[2]))

    def __str__(self) -> str:
        return f"{self.key}:{self.value.hex()}"

    def covers(self, signed: bytes) -> bool:
        """Whether the holder of the key signed these bytes."""
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key.partition(":")[2]))
        try:
            public.verify(self.value, signed)
        except exceptions.InvalidSignature:
            return False
        return True


class ServiceKey:
    """The key whose signatures a client takes from one service: the one given, else the first one seen.

    A key that was seen first is kept in a file that every process of this user shares, under the URL of the
    service. Safe to share between threads and forks.

    Args:
        url: of the service.
        folder: of the client's cache; where nothing can be written, each process keeps the key by itself.
        given: the only key to trust; a file counts no more.

    Raises:
        InvalidProblem: the key given is none.
    """

    def __init__(self, url: str, folder: Path, given: str | None = None) -> None:
        self._url = url
        self._file = folder / "keys" / hashlib.sha256(url.encode()).hexdigest()[:32]
        self._given = None if given is None else checked_key(given)
        self._seen: str | None = None

    @property
    def known(self) -> str | None:
        """The key; None before any was seen."""
        return self._given or self._seen or self._kept()

    def check(self, signature: str | None, signed: bytes, *, first: bool = True) -> None:
        """Check what the service said, or what a cache kept.

        Args:
            signature: its text.
            signed: the statement that it must cover.
            first: take the key of a valid signature where none is known; not for what a cache kept.

        Raises:
            TrustError: nothing is signed, by another key, or the signature does not hold.
        """
        if not signature:
            raise TrustError(f"{self._url} signs nothing, as an older release; upgrade it")
        found, known = Signature.parse(signature), self.known
        if known is not None and found.key != known:
            raise TrustError(self._other(known, found.key))
        if known is None and not first:
            raise TrustError(f"no key of {self._url} is known yet; give Client(url, trust=...)")
        if not found.covers(signed):
            raise TrustError(
                f"what {self._url} sent is not what it signed; ask it without the proxy or cache between"
            )
        if known is None and (kept := self._keep(found.key)) != found.key:
            raise TrustError(self._other(kept, found.key))

    def _other(self, known: str, found: str) -> str:
        wanted = f"signs with {found}, but the key to trust is {known}"
        ask = "ask its operator whether the key changed ('tilewright trust show' prints it)"
        then = "pass the new one as trust=" if self._given else f"delete {self._file} or pass trust="
        return f"{self._url} {wanted}: {ask}; if it did, {then}"

    def _kept(self) -> str | None:
        try:
            key, _, url = self._file.read_text().partition(" ")
        except (OSError, ValueError):
            return None
        if url.strip() == self._url and _KEY.fullmatch(key):
            self._seen = key
        return self._seen

    def _keep(self, key: str) -> str:
        """Keep the first key; gives the one of another process that was faster."""
        beside = self._file.with_name(f".new-{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{key} {self._url}\n")
            with contextlib.suppress(FileExistsError):
                os.link(beside, self._file)
            beside.unlink()
        self._seen = self._kept() or key
        return self._seen
