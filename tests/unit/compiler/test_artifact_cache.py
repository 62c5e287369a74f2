"""The folder of built artifacts: kept where it can be written, never in the way where it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host_samples import artifact_of, config_of

from kernels.compiler.build import ArtifactCache
from tilewright.schema.problem import GemmProblem

KEY = "ab" * 32
ARTIFACT = artifact_of(config_of(), GemmProblem(64, 64, 64, "float32"))


def test_what_is_put_is_found_and_a_damaged_entry_is_a_miss(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, ARTIFACT)
    assert cache.get(KEY) == ARTIFACT
    (tmp_path / "ab" / KEY).write_bytes((tmp_path / "ab" / KEY).read_bytes()[:-1])
    assert cache.get(KEY) is None


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = ArtifactCache(tmp_path / "file")
    cache.put(KEY, ARTIFACT)
    assert cache.get(KEY) is None


def test_a_full_disk_leaves_no_part_of_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    ArtifactCache(tmp_path).put(KEY, ARTIFACT)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
