"""Which key a client takes a service's signatures from."""

from __future__ import annotations

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


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    ServiceKey(URL, tmp_path).check(sign(1), SIGNED)
    (file,) = (tmp_path / "keys").iterdir()
    for content in (b"", b"\xff\xfe", b"nonsense", f"{signer(1).public_key} http://another".encode()):
        file.write_bytes(content)
        assert ServiceKey(URL, tmp_path).known is None
