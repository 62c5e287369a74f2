"""The private key of a service: Ed25519, in a file that only its user may read."""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import secrets
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tilewright.errors import TilewrightError
from tilewright.trust import About, Signature, private_folder, statement

_KEPT = 256  # signatures


class SigningKeyError(TilewrightError):
    """The signing key cannot be used; the message says what to do."""


class Signer:
    """Signs what a service hands out; safe to share between threads.

    Attributes:
        public_key: what others trust, ``ed25519:`` and 64 hex digits.
    """

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_key = f"ed25519:{private.public_key().public_bytes_raw().hex()}"
        # NOTE: every client of a set is sent the same ones, and Ed25519 signs a statement always alike.
        self._signed = functools.lru_cache(_KEPT)(self._sign)

    def sign(self, about: About, *names: str) -> str:
        """The text of a signature over a statement, see :func:`tilewright.trust.statement`."""
        return self._signed(about, *names)

    def _sign(self, about: About, *names: str) -> str:
        return str(Signature(self.public_key, self._private.sign(statement(about, *names))))

    def secret(self, purpose: str) -> bytes:
        """A secret for a purpose, derived so that it reveals neither the key nor other secrets."""
        return hmac.digest(self._private.private_bytes_raw(), purpose.encode(), "sha256")

    @classmethod
    def load(cls, path: Path) -> Self:
        """The key of a file.

        Raises:
            SigningKeyError: there is none, it is no Ed25519 key in PEM, or others own it or may read it.
        """
        try:
            with open(path, "rb") as file:
                status, content = os.fstat(file.fileno()), file.read()
        except FileNotFoundError:
            raise SigningKeyError(f"there is no signing key {path}; 'tilewright serve' makes it") from None
        except OSError as error:
            raise SigningKeyError(
                f"the signing key {path} cannot be read ({error.strerror}); set TILEWRIGHT_SIGNING_KEY"
            ) from error
        if status.st_mode & 0o077:
            raise SigningKeyError(f"others may read the signing key; chmod 600 {path}")
        if status.st_uid not in (0, os.geteuid()):
            raise SigningKeyError(
                f"the signing key {path} belongs to another user; set TILEWRIGHT_SIGNING_KEY"
            )
        with contextlib.suppress(ValueError, TypeError):
            private = load_pem_private_key(content, password=None)
            if isinstance(private, Ed25519PrivateKey):
                return cls(private)
        raise SigningKeyError(
            f"{path} is no Ed25519 private key in PEM without a password; restore it, or move it away so that"
            " a new one is made, which clients and other services must trust anew"
        )

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """The key of a file, which is made if it is missing. If several processes make it at once, one of
        them wins.

        Raises:
            SigningKeyError: as :meth:`load`, or it cannot be written.
        """
        if not path.exists():
            try:
                _create(path)
            except OSError as error:
                raise SigningKeyError(
                    f"no signing key can be made at {path}: {error.strerror}; set TILEWRIGHT_SIGNING_KEY"
                ) from error
        return cls.load(path)


def _create(path: Path) -> None:
    content = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    private_folder(path.parent)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
