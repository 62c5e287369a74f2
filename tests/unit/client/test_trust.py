"""Which key a client takes a service's signatures from."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from signers import signer

from tilewright.errors import InvalidProblem, TrustError
from tilewright.trust import About, ServiceKey, Signature, statement

URL = "http://127.0.0.1:8080"
DIGEST = "sha256:" + "a" * 64
SIGNED = statement(About.CONFIG_SET, "sm_90", DIGEST)


def sign(number: int, digest: str = DIGEST) -> str:
    return signer(number).sign(About.CONFIG_SET, "sm_90", digest)


def test_a_statement_says_what_it_is_about() -> None:
    assert f"tilewright signature 1\nconfig-set\nsm_90\n{DIGEST}\n".encode() == SIGNED
    with pytest.raises(ValueError, match="one line"):
        statement(About.CONFIG_SET, "sm_90\nx")


def test_the_first_key_is_kept_for_its_url_and_no_other(tmp_path: Path) -> None:
    key = ServiceKey(URL, tmp_path)
    assert key.known is None
    key.check(sign(1), SIGNED)
    assert key.known == signer(1).public_key
    (file,) = (tmp_path / "keys").iterdir()
    assert file.read_text() == f"{signer(1).public_key} {URL}\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    ServiceKey(URL, tmp_path).check(sign(1), SIGNED)
    other = ServiceKey("http://127.0.0.1:9", tmp_path)
    assert other.known is None
    other.check(sign(2), SIGNED)
    assert other.known == signer(2).public_key


def test_another_key_is_refused_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    ServiceKey(URL, tmp_path).check(sign(1), SIGNED)
    later = ServiceKey(URL, tmp_path)
    with pytest.raises(TrustError) as refused:
        later.check(sign(2), SIGNED)
    (file,) = (tmp_path / "keys").iterdir()
    for named in (URL, signer(1).public_key, signer(2).public_key, f"delete {file}", "trust=", "trust show"):
        assert named in str(refused.value)
    assert later.known == signer(1).public_key
    file.unlink()
    ServiceKey(URL, tmp_path).check(sign(2), SIGNED)


def test_a_given_key_is_the_only_one(tmp_path: Path) -> None:
    ServiceKey(URL, tmp_path).check(sign(1), SIGNED)
    key = ServiceKey(URL, tmp_path, signer(2).public_key)
    key.check(sign(2), SIGNED)
    with pytest.raises(TrustError, match="pass the new one as trust="):
        key.check(sign(1), SIGNED)
    for wrong in ("", "ed25519:", signer(1).public_key.upper(), sign(1), 7):
        with pytest.raises(InvalidProblem, match="'tilewright trust show' prints it"):
            ServiceKey(URL, tmp_path, wrong)  # type: ignore[arg-type]


def test_nothing_that_does_not_hold_is_taken_or_remembered(tmp_path: Path) -> None:
    key, other = ServiceKey(URL, tmp_path), sign(1, "sha256:" + "b" * 64)
    forged = str(Signature(signer(1).public_key, Signature.parse(sign(2)).value))
    for text in (None, "", "nonsense", sign(1)[:-1], sign(1) + "0", other, forged):
        with pytest.raises(TrustError):
            key.check(text, SIGNED)
    assert key.known is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_cache_kept_teaches_no_key(tmp_path: Path) -> None:
    key = ServiceKey(URL, tmp_path)
    with pytest.raises(TrustError, match="no key"):
        key.check(sign(1), SIGNED, first=False)
    key.check(sign(1), SIGNED)
    key.check(sign(1), SIGNED, first=False)


def test_of_two_that_come_first_at_once_one_is_kept(tmp_path: Path) -> None:
    taken, start = set[int](), threading.Barrier(8)

    def first(number: int) -> None:
        key = ServiceKey(URL, tmp_path)
        start.wait()
        try:
            key.check(sign(number), SIGNED)
        except TrustError:
            return
        taken.add(number)

    threads = [threading.Thread(target=first, args=(1 + number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    assert ServiceKey(URL, tmp_path).known == signer(taken.pop()).public_key


def test_a_folder_that_cannot_be_written_keeps_the_key_in_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    key = ServiceKey(URL, tmp_path / "file")
    key.check(sign(1), SIGNED)
    with pytest.raises(TrustError):
        key.check(sign(2), SIGNED)


def test_a_key_that_cannot_be_kept_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("this file system has no links")

    monkeypatch.setattr(os, "link", refused)
    key = ServiceKey(URL, tmp_path)
    key.check(sign(1), SIGNED)
    assert key.known == signer(1).public_key
    assert list((tmp_path / "keys").iterdir()) == []


IN_ASCII = """
import pathlib, sys
from tilewright.trust import ServiceKey
url, (folder, signature, signed) = "http://b\\u00fccher.example", sys.argv[1:]
for _ in range(2):
    ServiceKey(url, pathlib.Path(folder)).check(signature, signed.encode())
assert ServiceKey(url, pathlib.Path(folder)).known
"""


def test_the_key_of_a_service_of_any_name_is_kept_in_any_locale(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", IN_ASCII, str(tmp_path), sign(1), SIGNED.decode()]
    subprocess.run(command, env=os.environ | ascii_only, check=True)


CONTENTS = {
    "empty": b"",
    "cut off": signer(1).public_key[:40].encode(),
    "no text": b"\xff\xfe",
    "nonsense": b"nonsense",
    "of another URL": f"{signer(1).public_key} http://another\n".encode(),
}
PLACED = ("a link", "a link to nothing", "a folder", "a pipe")


def place(what: str, file: Path) -> None:
    """Put something else in the place of a file."""
    kept = file.rename(file.parent.parent / "elsewhere")
    if what == "a folder":
        file.mkdir()
    elif what == "a pipe":
        os.mkfifo(file, 0o600)
    else:
        file.symlink_to(kept if what == "a link" else "nothing")


def with_key(folder: Path, url: str = URL) -> Path:
    """The file of the first key, which is that of signer 1."""
    ServiceKey(url, folder)._keep(signer(1).public_key)
    (file,) = (folder / "keys").iterdir()
    return file


def of_another_user(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    if own == 0:  # whose files count for every user
        os.chown(file, own + 2, -1)


@pytest.mark.parametrize("how", [*CONTENTS, *PLACED, "of another user"])
def test_no_key_is_trusted_in_place_of_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """At every start another key was trusted, and the file was never repaired."""
    file = with_key(tmp_path)
    if how == "of another user":
        of_another_user(file, monkeypatch)
    elif how in PLACED:
        place(how, file)
    else:
        file.write_bytes(CONTENTS[how])
    for number in (2, 3, 1):
        with pytest.raises(TrustError) as refused:
            ServiceKey(URL, tmp_path).check(sign(number), SIGNED)
        for named in (f"{file} should hold", URL, "check who changed it, and delete it", "pass trust="):
            assert named in str(refused.value)
    ServiceKey(URL, tmp_path, signer(2).public_key).check(sign(2), SIGNED)
    file.rmdir() if how == "a folder" else file.unlink()
    monkeypatch.undo()
    ServiceKey(URL, tmp_path).check(sign(2), SIGNED)
    assert ServiceKey(URL, tmp_path).known == signer(2).public_key


def test_no_key_is_trusted_while_the_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, key = with_key(tmp_path), ServiceKey(URL, tmp_path)

    def no_descriptor(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_descriptor)
        with pytest.raises(TrustError, match=rf"cannot read {file}, .*: Too many open files; try again once"):
            key.check(sign(2), SIGNED)
    with pytest.raises(TrustError, match="the key to trust is"):
        key.check(sign(2), SIGNED)
    key.check(sign(1), SIGNED)


def test_a_key_is_on_disk_before_its_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the file was empty."""
    done = list[tuple[str, int, int]]()
    sync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        status = os.fstat(descriptor)
        done.append(("synced", status.st_ino, status.st_size))
        sync(descriptor)

    def linked(source: Path, target: Path) -> None:
        status = os.stat(source)
        done.append(("linked", status.st_ino, status.st_size))
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    status = with_key(tmp_path).stat()
    assert done == [(how, status.st_ino, status.st_size) for how in ("synced", "linked")]
    assert status.st_size > 0


def test_on_a_file_system_without_owners_a_key_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file there would count as one of another user from the next start on."""
    made = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*made(file)[:4], 65534, *made(file)[5:])))
    for number in (1, 2):
        key = ServiceKey(URL, tmp_path)
        key.check(sign(number), SIGNED)
        assert key.known == signer(number).public_key
        assert list((tmp_path / "keys").iterdir()) == []


@pytest.mark.parametrize("damaged", ["mode", "content"])
def test_a_damaged_file_of_a_url_with_a_password_refuses_other_keys_and_tells_no_password(
    tmp_path: Path, damaged: str
) -> None:
    formerly = URL.replace("//", "//me:secret@")
    file = with_key(tmp_path, formerly)
    file.chmod(0o660) if damaged == "mode" else os.truncate(file, 40)
    key = ServiceKey(URL, tmp_path, formerly=formerly)  # raises nothing: the vendor library runs meanwhile
    with pytest.raises(TrustError, match=URL) as refused:
        key.check(sign(2), SIGNED)
    assert str(file) in str(refused.value)
    assert "secret" not in str(refused.value)
    ServiceKey(URL, tmp_path, signer(2).public_key, formerly).check(sign(2), SIGNED)
    if damaged == "mode":
        file.chmod(0o600)
        key.check(sign(1), SIGNED)
    else:
        file.unlink()
        key.check(sign(2), SIGNED)
