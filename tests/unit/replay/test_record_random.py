"""The random recordings of benchmarks/lab: what is drawn, what is resumed."""

from pathlib import Path

import pytest
from device_samples import H200

from benchmarks.lab import record_random
from kernels.registry import FAMILIES
from tilewright.errors import InvalidProblem
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tuner.replay.formats import read_space

SMALL = GemmProblem(96, 128, 64, DType.FLOAT32)


def test_more_configs_of_a_seed_begin_with_the_same_and_with_the_heuristic_ones() -> None:
    host = FAMILIES["host"]
    spec = DeviceSpec("host", "x86_64", "cpu", 2, 2**33, 2**20)
    few, size = record_random.drawn(host, SMALL, spec, 20, seed=7)
    more, _ = record_random.drawn(host, SMALL, spec, 30, seed=7)
    other, _ = record_random.drawn(host, SMALL, spec, 30, seed=8)
    first = host.heuristic_configs(SMALL, spec)[0]
    assert size > 30
    assert len(few) == len(set(few)) == 20
    assert more[:20] == few
    assert more[0] == first
    assert more != other


@pytest.mark.long
def test_a_recording_goes_on_and_measures_the_fastest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(record_random, "AGAIN", 2)
    command = ["96x128x64", "--dtype", "float32", "--device", "host", "--processes", "2"]
    command += ["--stop-after", "60", "--out", str(tmp_path)]
    path = tmp_path / "host-96x128x64-float32-host.t4.json.gz"
    record_random.main([*command, "--family", "host=3"])
    before = read_space(path)
    record_random.main([*command, "--family", "host=5"])
    after = read_space(path)
    assert (len(before), len(after)) == (3, 5)
    assert set(map(str, before.best(3))) < set(map(str, after.best(5)))
    assert after.provenance["planned"] > 5
    assert after.provenance["method"] == record_random.METHOD
    assert "the optimum may be missing" in after.doubts[0]
    counts = sorted(len(entry.samples_us) for entry in before.entries)
    assert counts[-2:] == [record_random.AGAIN_SAMPLES] * 2
    assert counts[0] < record_random.AGAIN_SAMPLES


def test_heuristic_configs_that_the_search_rules_leave_out_are_recorded() -> None:
    family, problem = FAMILIES["simt"], GemmProblem(16, 28672, 4096)
    configs, _ = record_random.drawn(family, problem, H200, 50, seed=7)
    own = family.heuristic_configs(problem, H200)
    assert configs[: len(own)] == own
    assert any(family.why_not_searched(config, problem, H200) for config in own)


def test_files_are_named_for_shape_type_and_device() -> None:
    assert record_random.file_name(GemmProblem(16, 28672, 4096), H200) == "16x28672x4096-float16-h200"


@pytest.mark.parametrize("text", ["wgmma_ws", "wgmma_ws=", "wgmma_ws=0", "no_family=5"])
def test_a_number_of_configs_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidProblem, match="use FAMILY=COUNT"):
        record_random.families_of([text])
