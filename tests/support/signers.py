"""Keys for tests, to sign what a service would sign."""

from __future__ import annotations

import hashlib
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from service.signing import Signer
from tilewright.trust import About


def signer(number: int) -> Signer:
    """The same key for the same number."""
    return Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def signed_export(by: Signer, lines: bytes) -> bytes:
    """Lines of an export, and a signature over all of them."""
    signature = by.sign(About.EXPORT, hashlib.sha256(lines).hexdigest())
    return lines + json.dumps({"kind": "signature", "signature": signature}).encode() + b"\n"
