"""Trust in kernels: Ed25519 signatures of a service, and the key whose signatures a client accepts.

A signature covers a statement of a few lines: its subject, and names derived from contents. The digest of a
config set follows from the digests of its kernels, so one signature vouches for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import stat
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
SERVED_HEADER = "Tilewright-Served"
SIGNATURE_LINE = b'{"kind":"signature",'  # how a line of an export begins that signs those before it
_LONGEST = 4096  # characters of a file with a key
_KEY = re.compile(r"ed25519:([0-9a-f]{64})")
_SERVED = re.compile(r"([1-9][0-9]{0,17}) (ed25519:\S+)")
_SIGNATURE = re.compile(r"(ed25519:[0-9a-f]{64}):([0-9a-f]{128})")


class About(StrEnum):
    """What a statement is about; its names are, in this order, for

    Attributes:
        CONFIG_SET: a device class, and the digest of a set that it is served.
        SERVED: the same, and the serial under which the set is served, which grows with each change.
        ARTIFACT: the digest of a kernel.
        EXPORT: the digest of lines of an export.
    """

    CONFIG_SET = "config-set"
    SERVED = "served"
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
    """A signature and the public key of its claimed signer; as text ``ed25519:KEY:SIGNATURE``, in hex."""

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
            raise TrustError(f"a signature must be ed25519: and two hexadecimal numbers, got {text[:80]!r}")
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


def served_serial(header: str, device_class: str, digest: str, key: str) -> int:
    """The serial under which a key signed that a set is served to a device class; 0 if it did not."""
    found = _SERVED.fullmatch(header)
    if found is None:
        return 0
    try:
        signature = Signature.parse(found[2])
        signed = statement(About.SERVED, device_class, digest, found[1])
    except (TrustError, ValueError):
        return 0
    return int(found[1]) if signature.key == key and signature.covers(signed) else 0


class ServiceKey:
    """The key whose signatures a client takes from one service: the one given, else the first one seen.

    The first key seen is kept in a file for the URL of the service, which all processes of this user share.
    The serial of the newest config set that the service served is kept likewise. Safe to share between
    threads and forks.

    Args:
        url: of the service.
        folder: of the client's cache; where nothing can be written, each process keeps the key by itself.
        given: the only key to trust; a file counts no more.
        formerly: the URL with a user and a password, under which earlier releases kept the key.

    Raises:
        InvalidProblem: the key given is none.
    """

    def __init__(self, url: str, folder: Path, given: str | None = None, formerly: str = "") -> None:
        self._url, self._folder = url, folder
        self._file = folder / "keys" / hashlib.sha256(url.encode()).hexdigest()[:32]
        self._given = None if given is None else checked_key(given)
        self._seen: str | None = None
        self._served: dict[str, int] = {}
        self._before = ServiceKey(formerly.rstrip("/"), folder) if "@" in formerly else None
        with contextlib.suppress(TrustError):  # which is raised again where the key is needed
            self._adopt()

    def _adopt(self) -> None:
        """Take over a key that was kept under another URL, and remove its file.

        Raises:
            TrustError: one of the two files is there but gives no key.
        """
        before = self._before
        if before is None:
            return
        try:
            key = before.known
        except TrustError as error:  # whose URL has the password
            raise TrustError(str(error).replace(before._url, self._url)) from None
        if key and not self._kept():
            self._keep(key)
        with contextlib.suppress(OSError):
            before._file.unlink()
        self._before = None

    @property
    def known(self) -> str | None:
        """The key; None before any was seen.

        Raises:
            TrustError: others may write to the file that keeps it, or it is there but gives no key.
        """
        if not (self._given or self._seen):
            self._adopt()
        return self._given or self._seen or self._kept()

    def check(self, signature: str | None, signed: bytes, *, first: bool = True) -> None:
        """Check a signature of data that the service sent or a cache kept, and keep the first key.

        Args, Raises: as :meth:`verify`.
        """
        found = self.verify(signature, signed, first=first)
        if (kept := self.known or self._keep(found.key)) != found.key:  # another one came first
            raise TrustError(self._other(kept, found.key))

    def verify(self, signature: str | None, signed: bytes, *, first: bool = True) -> Signature:
        """Check a signature and keep no key.

        Args:
            signature: its text.
            signed: the statement that it must cover.
            first: accept the key of a valid signature if none is known; not for data that a cache kept.

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
        return found

    def newest_served(self, device_class: str) -> int:
        """The serial of the newest set seen from the service for a device class; 0 before the first."""
        return self._newest(device_class)[0]

    def check_served(self, header: str | None, device_class: str, digest: str, newest: int) -> None:
        """Check that a set is no older than the newest set seen from the service for a device class, and
        store its serial.

        Args:
            header: serial and signature; empty or None from an earlier release, which has none.
            newest: :meth:`newest_served` when the set was asked for: another process may have seen a newer
                one since.

        Raises:
            TrustError: it is older, or not signed under its serial.
        """
        known, path = self._newest(device_class)
        found = _SERVED.fullmatch(header or "")
        if found is None:
            if known:
                raise TrustError(
                    f"{self._url} must sign when it served a set, as it did before; {_forget(path)}"
                )
            return
        serial = int(found[1])
        self.check(found[2], statement(About.SERVED, device_class, digest, found[1]))
        known, path = self._newest(device_class)  # the key may be known from now on
        if serial < newest:
            raise TrustError(
                f"{self._url} sent an earlier config set of {device_class} than it served before; ask it"
                " without the proxy or cache between, have its operator pin the set that should be served,"
                f" or {_forget(path)}"
            )
        if serial > known:
            self._remember(path, serial)

    def _newest(self, device_class: str) -> tuple[int, Path]:
        """The highest serial seen, 0 before the first, and the path of its file without the serial."""
        about = hashlib.sha256(f"{self._url} {self.known} {device_class}".encode()).hexdigest()[:32]
        path = self._folder / "served" / about
        with contextlib.suppress(OSError):
            for name in os.listdir(path.parent):
                start, _, serial = name.partition(".")
                if start == about and serial.isascii() and serial.isdecimal() and len(serial) < 19:
                    self._served[about] = max(self._served.get(about, 0), int(serial))
        return self._served.get(about, 0), path

    def _remember(self, path: Path, serial: int) -> None:
        # NOTE: a file for each serial, so that of processes that write at once the newest counts.
        before = self._served.get(path.name, 0)
        self._served[path.name] = max(before, serial)
        with contextlib.suppress(OSError):
            private_folder(path.parent)
            os.close(os.open(f"{path}.{serial}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            if 0 < before < serial:
                os.unlink(f"{path}.{before}")

    def _other(self, known: str, found: str) -> str:
        wanted = f"signs with {found}, but the key to trust is {known}"
        ask = "ask its operator whether the key changed ('tilewright trust show' prints it)"
        then = "pass the new one as trust=" if self._given else f"delete {self._file} or pass trust="
        return f"{self._url} {wanted}: {ask}; if it did, {then}"

    def _kept(self) -> str | None:
        """The key in the file; None if there is no file.

        Raises:
            TrustError: the file is there, but gives no key that this user must have kept.
        """
        # NOTE: others who can write to the folder could leave a key of theirs there, or spoil the file: to
        # take the next key instead would drop the first one.
        try:
            with open(self._file, encoding="utf-8", errors="replace", opener=without_waiting) as file:
                status = os.fstat(file.fileno())
                text = file.read(_LONGEST) if stat.S_ISREG(status.st_mode) else ""
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            try:
                status = self._file.lstat()
            except OSError:  # there is no such folder, or this user may not enter it
                return None
            text = ""
            if _is_own(status):
                raise TrustError(
                    f"cannot read {self._file}, the first key of {self._url}: {error.strerror};"
                    " try again once this user can read it, or pass trust="
                ) from error
        key, _, url = text.partition(" ")
        if not _is_own(status) or url.strip() != self._url or not _KEY.fullmatch(key):
            raise TrustError(
                f"{self._file} should hold the first key of {self._url}, but is damaged, a link or of another"
                " user: check who changed it, and delete it to trust the next key seen, or pass trust="
            )
        if status.st_mode & 0o022:
            raise TrustError(
                f"others may write to {self._file}, the first key of {self._url}: compare it with"
                f" 'tilewright trust show' and run 'chmod 600 {self._file}', or pass trust="
            )
        self._seen = key
        return key

    def _keep(self, key: str) -> str:
        """Keep the first key; returns the key of another process if that was faster."""
        beside = self._file.with_name(f".new-{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            private_folder(self._file.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            try:
                with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
                    status = os.fstat(file.fileno())
                    if status.st_mode & 0o022 or not _is_own(status):
                        raise PermissionError(
                            "a file system without modes or owners: another user could replace the key"
                        )
                    file.write(f"{key} {self._url}\n")
                    file.flush()
                    os.fsync(file.fileno())  # a crash must not leave a file without a key
                os.link(beside, self._file)
            finally:
                beside.unlink(missing_ok=True)
        self._seen = self._kept() or key
        return self._seen


def private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter, and those around it that are missing.

    Raises:
        OSError: one cannot be made.
    """
    # NOTE: with ``parents=True`` those around it would have the mode that the umask leaves.
    for path in (*reversed(folder.parents), folder):
        path.mkdir(mode=0o700, exist_ok=True)


def without_waiting(path: str, flags: int) -> int:
    """An opener for ``open``, which does not wait if a pipe stands in the file's place and follows no
    link."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)


def _is_own(status: os.stat_result) -> bool:
    """Whether this is a file that no user but this one and root can have made."""
    return stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())


def _forget(path: Path) -> str:
    return f"delete {path}.* if it should go back"
