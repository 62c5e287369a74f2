"""Where imports are kept while they come: a disk that is full, and a folder that may not be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.results import spool
from service.results.spool import NoRoom, Spool


def test_what_is_written_is_read_and_nothing_stays(tmp_path: Path) -> None:
    with Spool(tmp_path / "new" / "folder") as kept:
        kept.write(b"one ")
        kept.write(b"two")
        assert kept.whole().read() == b"one two"
        assert list((tmp_path / "new" / "folder").iterdir()) == []


def full_disk(**_: Any) -> IO[bytes]:
    return Path("/dev/full").open("r+b")


@pytest.mark.parametrize("size", [1, 2**20])
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(spool.tempfile, "TemporaryFile", full_disk)

    def keep() -> None:
        with Spool(tmp_path) as kept:
            kept.write(bytes(size))
            kept.whole()

    with pytest.raises(NoRoom, match=r"is full.*make space") as refused:
        keep()
    assert refused.value.is_full


def no_folder(tmp_path: Path) -> Path:
    """A folder that cannot be made, not even by root."""
    (tmp_path / "file").write_bytes(b"")
    return tmp_path / "file" / "below"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoRoom, match="set TILEWRIGHT_CACHE_DIR") as refused:
        Spool(no_folder(tmp_path))
    assert not refused.value.is_full

    def read_only(**_: Any) -> IO[bytes]:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(spool.tempfile, "TemporaryFile", read_only)
    with pytest.raises(NoRoom, match="Read-only file system"):
        Spool(tmp_path)


def test_the_command_line_uses_the_same_folder(tmp_path: Path) -> None:
    file = tmp_path / "empty.ndjson"
    file.write_bytes(b"")
    env = {"TILEWRIGHT_CACHE_DIR": str(no_folder(tmp_path))}
    command = ["import", str(file), "--database-url", f"sqlite:///{tmp_path}/new.db"]
    done = CliRunner().invoke(app, command, env=env)
    assert done.exit_code == 1
    assert "set TILEWRIGHT_CACHE_DIR" in done.output
