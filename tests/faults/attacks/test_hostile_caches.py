"""A cache folder that others can write to: links, pipes, huge files and keys that somebody left there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_samples import artifact_of, config_of
from set_server import SetService, config_set, entry, serving
from signers import signer

from tilewright import Artifact, Client, GemmProblem
from tilewright.artifact.cache import DAY_S, VERSION, Bounds, DiskCache, prune
from tilewright.artifact.compiled import MAGIC
from tilewright.errors import ArtifactError

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), TUNED)
START = """
import sys
from tilewright import Client
with Client(sys.argv[1], cache_dir=sys.argv[2]).start("host") as tw:
    print(tw.refresh(20.0))
"""


@pytest.fixture
def service() -> Iterator[SetService]:
    with serving(SetService(config_set([entry(TUNED, KERNEL)]), [KERNEL], serial=5)) as running:
        yield running


def old_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of the user")
    os.utime(path, (0, 0))
    return path


def test_pruning_follows_no_link_and_leaves_alone_what_it_did_not_make(tmp_path: Path) -> None:
    """A link in place of a folder of kernels had old files of the user removed."""
    root, digest = tmp_path / "cache" / VERSION, "ab" + "0" * 62
    kept = [
        old_file(tmp_path / "documents" / "letter"),
        old_file(tmp_path / "documents" / digest),
        old_file(root / "cd" / "notes.txt"),
        old_file(root / "named" / "notes.txt"),
        old_file(root / "zz" / digest),
    ]
    (root / "ab").symlink_to(tmp_path / "documents")
    (root / "named" / digest).symlink_to(kept[0])
    gone = old_file(root / "ef" / ("ef" + "0" * 62))
    prune(root, Bounds(size=0), time.time() + 100 * DAY_S)
    assert [path for path in kept if not path.exists()] == []
    assert not gone.exists()


@pytest.mark.parametrize("planted", ["pipe", "folder", "huge", "device", "loop"])
def test_a_start_waits_for_nothing_that_lies_in_place_of_a_file(
    service: SetService, tmp_path: Path, planted: str
) -> None:
    Client(service.url, cache_dir=tmp_path).start("host").close()
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(paths) >= 4
    for path in paths:
        path.unlink()
        if planted == "pipe":
            os.mkfifo(path)
        elif planted == "folder":
            path.mkdir()
        elif planted == "huge":
            with path.open("wb") as file:
                file.truncate(2**40)
        elif planted == "device":
            path.symlink_to("/dev/zero")
        else:
            path.symlink_to(path)
    (key,) = (tmp_path / "keys").iterdir()
    command = [sys.executable, "-c", START, service.url, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n"
    assert f"{key} should hold the first key" in done.stderr
    key.rmdir() if planted == "folder" else key.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("how", ["of another user", "a link"])
def test_a_key_that_others_may_have_left_is_neither_taken_nor_replaced(
    service: SetService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    Client(service.url, cache_dir=tmp_path).start("host").close()
    (file,) = (tmp_path / "keys").iterdir()
    file.write_text(f"{signer(2).public_key} {service.url}\n")
    with Client(service.url, cache_dir=tmp_path, offline=True) as tw:
        assert tw.service_key.known == signer(2).public_key, "so that the rest is due to who may write it"
    if how == "of another user":
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        os.chown(file, own + 2, -1) if own == 0 else None
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    for offline in (True, False):
        caplog.clear()
        with Client(service.url, cache_dir=tmp_path, offline=offline).start("host") as tw:
            assert tw.lookup(TUNED).kind == "vendor"
        assert f"{file} should hold the first key" in caplog.text
    file.unlink()
    with Client(service.url, cache_dir=tmp_path).start("host") as tw:
        assert tw.service_key.known == signer(1).public_key


def test_a_key_that_others_may_write_to_is_neither_taken_nor_replaced(
    service: SetService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next key that came was taken in its place, without a word."""
    Client(service.url, cache_dir=tmp_path).start("host").close()
    (file,) = (tmp_path / "keys").iterdir()
    file.chmod(0o660)
    service.signs_with = 2
    for offline in (True, False):
        caplog.clear()
        with Client(service.url, cache_dir=tmp_path, offline=offline).start("host") as tw:
            assert tw.lookup(TUNED).kind == "vendor"
        assert f"run 'chmod 600 {file}'" in caplog.text
    with Client(service.url, cache_dir=tmp_path, trust=signer(2).public_key).start("host") as tw:
        assert tw.lookup(TUNED).kind == "exact"
    file.chmod(0o600)
    with Client(service.url, cache_dir=tmp_path) as tw:
        assert tw.service_key.known == signer(1).public_key


def test_a_cache_gives_what_it_keeps_and_no_more(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    assert cache.name("set", b"content")
    (file,) = (tmp_path / VERSION / "named").iterdir()
    assert cache.named("set") == b"content"
    os.truncate(file, 2**27 + 1)
    assert cache.named("set") is None


def test_text_that_is_none_is_a_damaged_artifact() -> None:
    """Half a pair of surrogates in the name of a kernel raised UnicodeEncodeError in the linker's call."""
    whole = KERNEL.to_bytes()
    name = KERNEL.plan.entry.encode()
    start = len(MAGIC) + 4
    length = int.from_bytes(whole[len(MAGIC) : start], "little")
    header = whole[start : start + length].replace(b'"entry":"' + name, b'"entry":"\\ud800')
    damaged = MAGIC + len(header).to_bytes(4, "little") + header + whole[start + length :]
    with pytest.raises(ArtifactError, match="UnicodeEncodeError"):
        Artifact.from_bytes(damaged)
