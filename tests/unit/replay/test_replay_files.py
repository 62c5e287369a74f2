"""Recorded spaces in the formats of others and in our own."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import files_of_at_most
from toy_family import PROBLEM, TOY, toy_space

from tilewright.schema.trial import Outcome
from tuner.replay.formats import read_space, space_name, to_t4, write_space
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble

INVALIDITY = ("timeout", "compile", "runtime", "correctness", "constraints", "correct")
TIMED = {"configuration": {"x": 1}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}


def cache() -> dict[str, Any]:
    """Kernel Tuner's format: milliseconds, the name of an error instead of a time."""
    rows = [
        {"BX": 16, "USE": True, "P": 1.5, "time": 2.0, "times": [1.0, 2.0, 9.0], "compile_time": 500.0},
        {"BX": 32, "USE": True, "P": 1.5, "time": "InvalidConfig"},
        {"BX": 16, "USE": False, "P": 2.0, "time": 3.0, "verification_time": 250.0},
        {"BX": 32, "USE": False, "P": 2.0, "time": "RuntimeFailedConfig"},
    ]
    return {
        "device_name": "a GPU",
        "kernel_name": "gemm",
        "problem_size": [512, 256],
        "tune_params_keys": ["BX", "USE", "P"],
        "tune_params": {"BX": [16, 32], "USE": [True, False], "P": [1.5, 2.0]},
        "objective": "time",
        "cache": {str(i): row for i, row in enumerate(rows)},
    }


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "some.json.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    return path


def test_a_kernel_tuner_cache(tmp_path: Path) -> None:
    space = read_space(written(tmp_path, cache()))
    assert (space.name, space.family, len(space)) == ("some", "gemm", 4)
    assert (space.problem.m, space.problem.n) == (512, 256)
    # Booleans are 1 and 0, whole numbers integers, other numbers names.
    assert [knob.values for knob in space.knobs] == [(16, 32), (1, 0), ("1.5", 2)]
    by_config = {str(space.index.config(row)): entry for row, entry in enumerate(space.entries)}
    best = by_config["gemm(BX=16, P=1.5, USE=1)"]
    assert best == Entry((1000.0, 2000.0, 9000.0), compile_s=0.5)
    assert by_config["gemm(BX=16, P=2, USE=0)"] == Entry((3000.0,), check_s=0.25)
    assert by_config["gemm(BX=32, P=1.5, USE=1)"].outcome is Outcome.INVALID
    assert by_config["gemm(BX=32, P=2, USE=0)"].outcome is Outcome.LAUNCH_ERROR


def test_the_optimum_is_the_lowest_median_of_all_samples(tmp_path: Path) -> None:
    space = read_space(written(tmp_path, cache()))
    assert space.optimum_us == 2000.0
    slower = space.row(space.best(2)[1])
    assert space.fraction(slower) == pytest.approx(2 / 3)
    assert len(space.best(99)) == 2
    assert np.isnan(space.true_us).sum() == 2


def test_a_cache_that_was_never_closed(tmp_path: Path) -> None:
    text = json.dumps(cache())
    path = tmp_path / "open.json"
    path.write_text(text.removesuffix("}}") + ",\n")
    space = read_space(path)
    assert len(space) == 4
    assert "optimum may be missing" in space.doubts[0]
    write_space(space, tmp_path / "again.t4.json.gz")
    assert read_space(tmp_path / "again.t4.json.gz").doubts
    path.write_text(text)
    assert read_space(path).doubts == ()


def test_a_maximised_objective_is_not_taken_for_a_time(tmp_path: Path) -> None:
    """The fastest config of hotspot's cache has the most GFLOP/s."""
    data = cache() | {"objective": "GFLOP/s"}
    rows = data["cache"]
    for row, rate in zip(rows.values(), (448.8, "InvalidConfig", 21.95, "RuntimeFailedConfig"), strict=True):
        row["GFLOP/s"] = rate
    for failed in (rows["1"], rows["3"]):
        del failed["time"]
    space = read_space(written(tmp_path, data))
    assert str(space.best(1)[0]) == "gemm(BX=16, P=1.5, USE=1)"
    assert space.working == 2
    del rows["0"]["time"], rows["0"]["times"]
    with pytest.raises(SpaceError, match=r"no time of \{'BX': 16.*'time', whatever the objective"):
        read_space(written(tmp_path, data))


def test_times_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    data = cache()
    data["cache"]["0"]["times"] = [[1.0, 2.0], [3.0]]
    with pytest.raises(SpaceError, match=r"some\.json\.gz: times must be a list of numbers.*got \[\[1\.0"):
        read_space(written(tmp_path, data))
    result = {"configuration": {"x": 1}, "invalidity": "correct"}
    with pytest.raises(SpaceError, match=r"runtimes must be a list of numbers"):
        read_space(written(tmp_path, {"results": [result | {"times": {"runtimes": [[0.5]]}}]}))
    with pytest.raises(SpaceError, match=r"no time of \{'x': 1\}"):
        read_space(written(tmp_path, {"results": [result | {"times": {}}]}))


def test_t4_keeps_everything_but_the_seventh_digit(tmp_path: Path) -> None:
    space = toy_space(0.05, lambda config: config["tile"] == 16)
    path = tmp_path / "toy-space.t4.json.gz"
    write_space(space, path)
    again = read_space(path)
    assert (again.name, again.family, again.problem, again.device) == (
        "toy-space",
        "toy",
        PROBLEM,
        space.device,
    )
    assert again.knobs == space.knobs
    assert again.points.tolist() == space.points.tolist()
    assert [one.outcome for one in again.entries] == [one.outcome for one in space.entries]
    np.testing.assert_allclose(again.true_us, space.true_us, rtol=1e-5)
    failed = next(one for one in again.entries if not one.samples_us)
    assert failed == Entry((), Outcome.WRONG_RESULT, "wrong on purpose", 0.5, 0.25)
    assert {(one.registers, one.smem) for one in again.entries if one.samples_us} == {(32, 1024)}


def test_the_same_space_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_space(toy_space(0.05), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_space_that_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path) -> None:
    with files_of_at_most(100), pytest.raises(OSError, match=r"space\.t4\.json\.gz"):
        write_space(toy_space(0.05), tmp_path / "space.t4.json.gz")
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match=r"file/space\.t4\.json\.gz'$"):
        write_space(toy_space(0.05), file / "space.t4.json.gz")


def test_t4_has_what_its_schema_requires() -> None:
    data = to_t4(toy_space(0.05, lambda config: config["tile"] == 16))
    assert data["schema_version"] == "1.0.0"
    for one in data["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= one.keys()
        assert one["invalidity"] in INVALIDITY
        assert isinstance(one["times"]["runtimes"], list)
        assert all({"name", "value", "unit"} == measured.keys() for measured in one["measurements"])
    best = min((one for one in data["results"] if one["invalidity"] == "correct"), key=_time)
    assert _time(best) == pytest.approx(0.1, rel=0.1)  # milliseconds; the toy's optimum is 100 us


def _time(result: dict[str, Any]) -> float:
    return next(float(one["value"]) for one in result["measurements"] if one["name"] == "time")


def test_t4_of_others_has_no_metadata(tmp_path: Path) -> None:
    result = {"times": {"runtimes": [0.5]}, "invalidity": "correct", "correctness": 1}
    results = [result | {"configuration": {"x": x, "mode": "fast", "flag": x > 1}} for x in (4, 1, 2)]
    space = read_space(written(tmp_path, {"schema_version": "1.0.0", "results": results}))
    assert [knob.values for knob in space.knobs] == [(1, 2, 4), ("fast",), (0, 1)]
    assert len(space.best(3)) == 3
    assert space.optimum_us == 500.0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"neither": 1}, "must be T4"),
        ([], "JSON object"),
        ({"results": []}, "not empty"),
        ({"cache": {}}, "a Kernel Tuner cache must have"),
        ({"results": [{"configuration": {}}]}, "damaged"),
        ({"results": [TIMED], "metadata": []}, "damaged"),
        ({"results": [TIMED | {"times": [1.0]}]}, "damaged"),
        ({"results": [TIMED | {"times": {"runtimes": [10**400]}}]}, "damaged"),
        ({"results": [TIMED], "metadata": {"provenance": [1]}}, "damaged"),
        (cache() | {"tune_params": {"BX": [16], "USE": [True], "P": [1.5]}}, "not among the values"),
    ],
)
def test_what_is_no_space_is_refused(tmp_path: Path, data: Any, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        read_space(written(tmp_path, data))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(cache()).encode())
    for content in (whole[:-20], b"\x1f\x8b", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000):
        path = tmp_path / "broken"
        path.write_bytes(content)
        with pytest.raises(SpaceError, match="cannot read"):
            read_space(path)
    with pytest.raises(SpaceError, match="cannot read"):
        read_space(tmp_path / "absent")


def test_a_config_is_there_once() -> None:
    knobs = TOY.knobs[:1]
    with pytest.raises(SpaceError, match="occurs twice"):
        assemble(knobs, [[16], [32], [16]], [Entry((1.0,))] * 3)


def test_entries_are_checked() -> None:
    with pytest.raises(SpaceError, match="if and only if"):
        Entry(())
    with pytest.raises(SpaceError, match="if and only if"):
        Entry((1.0,), Outcome.TIMEOUT)
    with pytest.raises(SpaceError, match="positive"):
        Entry((0.0,))
    with pytest.raises(SpaceError, match="ok or a failure"):
        Entry((1.0,), Outcome.PRUNED)


def test_a_space_without_any_time_is_refused() -> None:
    space = toy_space()
    failed = tuple(Entry((), Outcome.TIMEOUT) for _ in space.entries)
    with pytest.raises(SpaceError, match="no config was measured"):
        RecordedSpace("x", "toy", space.knobs, space.points, failed, PROBLEM, space.device)


def test_names_of_files() -> None:
    assert space_name(Path("a/gemm_RTX_3090.json.gz")) == "gemm_RTX_3090"
    assert space_name(Path("wgmma-h200.t4.json.gz")) == "wgmma-h200"


def test_a_t4_file_of_an_earlier_release_is_read_under_the_names_of_today(tmp_path: Path) -> None:
    """The family gemv had another name, and its `min_ctas_per_sm` was `min_blocks`."""
    configs = [{"math": "fma", "min_blocks": ctas} for ctas in (2, 1)]
    results = [
        {"configuration": config, "times": {"runtimes": [time]}, "invalidity": "correct"}
        for config, time in zip(configs, (1.0, 2.0), strict=True)
    ]
    metadata = {
        "family": "skinny",  # codespell:ignore skinny
        "knobs": {"math": ["fma"], "min_blocks": [1, 2]},
    }
    space = read_space(written(tmp_path, {"metadata": metadata, "results": results}))
    assert str(space.best(1)[0]) == "gemv(math=fma, min_ctas_per_sm=2)"
