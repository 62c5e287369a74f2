"""The signing key of a service: made once, readable by its user alone, refused where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from host_samples import artifact_of, config_of

from kernels.compiler.build import ArtifactCache
from service.results.spool import Spool
from service.settings import Settings
from service.signing import Signer, SigningKeyError
from tilewright.artifact.cache import DiskCache
from tilewright.schema.problem import GemmProblem
from tilewright.trust import About, ServiceKey, Signature, statement
from tuner.store.database import Store

DIGEST = "sha256:" + "a" * 64
ARTIFACT = artifact_of(config_of(), GemmProblem(64, 64, 64, "float32"))


def test_it_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "signing.key"
    with pytest.raises(SigningKeyError, match="'tilewright serve' makes it"):
        Signer.load(path)
    first = Signer.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Signer.load_or_create(path).public_key == Signer.load(path).public_key == first.public_key
    assert os.listdir(path.parent) == ["signing.key"]


def _seen_key(folder: Path) -> None:
    key = Signer.load_or_create(folder.parent / "own.key")
    signed = key.sign(About.CONFIG_SET, "sm_90", DIGEST)
    ServiceKey("http://h", folder).check(signed, statement(About.CONFIG_SET, "sm_90", DIGEST))


MAKERS: dict[str, Callable[[Path], object]] = {
    "signing key": lambda folder: Signer.load_or_create(folder / "signing.key"),
    "database": lambda folder: Store.open(f"sqlite:///{folder}/tilewright.db").close(),
    "kernels": lambda folder: ArtifactCache(folder).put("ab" * 32, ARTIFACT),
    "imports": lambda folder: Spool(folder).__exit__(),
    "client's cache": lambda folder: DiskCache(folder).name("x", b"x"),
    "client's key": _seen_key,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_no_other_user_may_write_to_a_folder_that_is_made_whatever_the_umask(
    tmp_path: Path, maker: str
) -> None:
    before = os.umask(0)
    try:
        MAKERS[maker](tmp_path / "of" / "mine")
    finally:
        os.umask(before)
    made = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()}
    assert made
    assert set(made.values()) == {0o700}


def test_of_many_that_make_it_at_once_one_wins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda _: Signer.load_or_create(tmp_path / "signing.key").public_key, range(32))
    assert len(set(made)) == 1


def test_openssl_makes_it_too(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    command = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    path.chmod(0o600)
    assert Signer.load(path).public_key.startswith("ed25519:")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_one_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.key"
    Signer.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(SigningKeyError, match=f"chmod 600 {path}"):
        Signer.load_or_create(path)


def test_what_is_no_key_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    for content in ("", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"):
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(SigningKeyError, match="no Ed25519 private key"):
            Signer.load_or_create(path)
        assert path.read_text() == content


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SigningKeyError, match="TILEWRIGHT_SIGNING_KEY"):
        Signer.load_or_create(tmp_path / "file" / "signing.key")


def test_it_lies_beside_a_sqlite_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    own = tmp_path / "data" / "tilewright" / "signing.key"
    assert Settings(database_url="sqlite:////var/lib/x/a.db").signing_key == Path("/var/lib/x/signing.key")
    assert Settings(database_url="sqlite:////var/a%20b/a.db").signing_key == Path("/var/a b/signing.key")
    assert Settings(database_url="nonsense").signing_key == own
    assert Settings(database_url="postgresql+psycopg://u@h/d").signing_key == own
    assert Settings().signing_key == own
    monkeypatch.setenv("TILEWRIGHT_SIGNING_KEY", "/run/secrets/key")
    assert Settings().signing_key == Path("/run/secrets/key")


def test_what_it_signs_is_covered_and_nothing_else(tmp_path: Path) -> None:
    signer = Signer.load_or_create(tmp_path / "signing.key")
    signature = Signature.parse(signer.sign(About.CONFIG_SET, "sm_90", DIGEST))
    assert signature.key == signer.public_key
    assert signature.covers(statement(About.CONFIG_SET, "sm_90", DIGEST))
    for others in (
        (About.ARTIFACT, DIGEST),
        (About.CONFIG_SET, DIGEST, "sm_90"),
        (About.EXPORT, "sm_90", DIGEST),
    ):
        assert not signature.covers(statement(*others))


def test_the_service_does_not_start_without_its_key(tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_text("nonsense")
    environment = os.environ | {"TILEWRIGHT_DATABASE_URL": f"sqlite:///{tmp_path}/tilewright.db"}
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "error: others may read the signing key; chmod 600" in done.stderr
    assert not (tmp_path / "tilewright.db").exists()
