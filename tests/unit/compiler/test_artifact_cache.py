"""The folder of built artifacts: kept where it can be written, never in the way where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from device_samples import HOPPER
from host_samples import artifact_of, config_of

from kernels.compiler import build, nvrtc
from kernels.compiler.build import ArtifactCache
from kernels.simt.family import SIMT
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


def fill(cache: ArtifactCache, keys: range) -> None:
    for number in keys:
        cache.put(f"{number:064x}", ARTIFACT)
        os.utime(cache.folder / "00" / f"{number:064x}", (number, number))


def held(cache: ArtifactCache) -> list[int]:
    return sorted(int(path.name, 16) for path in cache.folder.glob("??/*"))


SIZE = 64 + len(ARTIFACT.to_bytes())


def test_the_longest_unused_entries_go_beyond_the_bound(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, 10 * SIZE)
    fill(cache, range(1, 11))
    assert held(cache) == list(range(1, 11))
    assert cache.get(f"{1:064x}") == ARTIFACT  # which is used now
    fill(cache, range(11, 14))
    assert held(cache) == [1, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert cache.get(f"{2:064x}") is None


def test_what_a_killed_writer_left_goes_after_a_day(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    fill(cache, range(1, 2))
    for name, age in (("tmpold", 100_000), ("tmpnew", 10)):
        (tmp_path / "00" / name).touch()
        os.utime(tmp_path / "00" / name, (time.time() - age,) * 2)
    cache.prune()
    assert sorted(path.name for path in tmp_path.glob("??/*")) == [f"{1:064x}", "tmpnew"]


USE = """
import sys
from pathlib import Path
from kernels.compiler.build import ArtifactCache
from tilewright.artifact import Artifact
artifact = Artifact.from_bytes(Path(sys.argv[2]).read_bytes())
cache = ArtifactCache(Path(sys.argv[1]), int(sys.argv[3]))
hits = 0
for step in range(300):
    key = f"{step % 40:064x}"
    found = cache.get(key)
    assert found in (None, artifact)
    hits += found is not None
    cache.put(key, artifact)
print(hits)
"""


@pytest.mark.long
def test_processes_that_write_read_and_evict_at_once_see_whole_entries(tmp_path: Path) -> None:
    (tmp_path / "artifact").write_bytes(ARTIFACT.to_bytes())
    arguments = [str(tmp_path / "cache"), str(tmp_path / "artifact"), str(20 * SIZE)]
    command = [sys.executable, "-c", USE, *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 3
    assert sum(map(int, told)) > 0
    assert len(held(ArtifactCache(tmp_path / "cache"))) <= 20 + 3


def test_files_that_are_not_its_own_stay(tmp_path: Path) -> None:
    """The folder may hold a database, too."""
    cache = ArtifactCache(tmp_path, 0)
    for name in ("db/tilewright.db", f"cd/{KEY}"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    cache.put(KEY, ARTIFACT)
    cache.prune()
    assert sorted(path.name for path in tmp_path.glob("*/*")) == [KEY, "tilewright.db"]


def test_a_kernel_of_another_update_of_nvrtc_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """13.0.48 and 13.0.88 both call themselves 13.0."""
    problem = GemmProblem(64, 64, 64)
    spec = SIMT.build_spec(SIMT.heuristic_configs(problem, HOPPER)[0], problem, HOPPER)
    before = build._key(spec, {}, "")
    assert build._key(spec, {}, "") == before
    assert "release" in nvrtc.nvrtc_build()
    monkeypatch.setattr(nvrtc, "nvrtc_build", lambda: "release 13.0, V13.0.48")
    assert build._key(spec, {}, "") != before
