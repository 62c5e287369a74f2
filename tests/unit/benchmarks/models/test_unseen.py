"""``tilewright bench unseen`` without a GPU: the shapes, rows on the host, resumption and failures."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from sweeps import every
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.common import fresh
from benchmarks.common.fresh import FreshTuner
from benchmarks.common.options import RowOptions
from benchmarks.common.shapes import HELD_OUT, SUITE, Shape
from benchmarks.models import run
from benchmarks.models.files import Row, samples_path, summary
from benchmarks.models.run import BenchResult, ShapesRequest, run_shapes
from benchmarks.models.shapes import UNSEEN
from service.cli.main import app
from tilewright.schema.problem import DType, Layout
from tuner.workers.process import WorkerProcess

SMALL = Shape("small or odd", 24, 20, 16, Layout.NT)
OTHER = dataclasses.replace(SMALL, m=9, layout=Layout.TN)
WANTED = "m n k layout group repeat gpu ours_us vendor_us ratio_back_to_back ratio_apart ci_low ci_high"


def test_sixty_shapes_of_models_and_twenty_others_half_of_them_held_out() -> None:
    of_models = [shape for shape in UNSEEN if shape.source]
    assert (len(of_models), len(UNSEEN)) == (60, 80)
    assert sum(shape.held_out for shape in UNSEEN) == sum(shape.held_out for shape in of_models) + 10 == 40
    assert len({shape.source.split("-")[0].rstrip("0123456789.") for shape in of_models}) >= 8
    assert len({shape.name for shape in UNSEEN}) == 80
    assert not {shape.name for shape in UNSEEN} & {shape.name for shape in (*SUITE, *HELD_OUT)}
    gradients = [shape for shape in UNSEEN if shape.layout is Layout.TN]
    assert all(shape.k <= 2048 < shape.m * shape.n for shape in gradients)
    for shape in UNSEEN:
        assert shape.problem(DType.BFLOAT16).m == shape.m


@pytest.fixture(scope="module")
def ran(_does_not_wait: None, tmp_path_factory) -> tuple[ShapesRequest, BenchResult]:
    """Two tiny shapes, tuned and raced for real."""
    out = tmp_path_factory.mktemp("unseen")
    run = RowOptions(device="host", out=out, rounds=8, stop_after=600.0)
    request = ShapesRequest("unseen", [SMALL, OTHER], DType.FLOAT32, 2, run, {"max_trials": 2})
    return request, run_shapes(request, print)


@pytest.fixture(scope="module", autouse=True)
def _does_not_wait() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "QUIET_WAIT_S", 0.0)
        yield


def test_each_row_has_its_figures_and_its_samples(ran) -> None:
    _, result = ran
    assert json.loads(result.path.read_text()) == result.rows
    assert [(row["m"], row["layout"], row["failure"]) for row in result.rows] == [
        (24, "nt", ""),
        (9, "tn", ""),
    ]
    samples = json.loads(samples_path(result.path).read_text())
    for row, facts in zip(result.rows, samples.values(), strict=True):
        assert {*WANTED.split(), "tune_s", "trials"} <= row.keys()
        assert row["ci_low"] <= min(row["ratio_apart"], row["ratio_back_to_back"]) <= row["ci_high"]
        assert row["trials"] == 2 < row["tune_s"] + 2
        assert len(facts["samples_us"]["ours"]) == 8
    assert summary(result.rows, ["ratio_apart"]).startswith("2 rows, 0 failed; ratio_apart ")


def running(request: ShapesRequest, **changes: Any) -> ShapesRequest:
    return dataclasses.replace(request, run=dataclasses.replace(request.run, **changes))


def test_resume_goes_on_after_the_rows_with_a_result(ran, tmp_path) -> None:
    request, result = ran
    again = running(request, out=tmp_path, resume=True)
    file = tmp_path / result.path.name
    file.write_text(json.dumps([result.rows[0], {**result.rows[1], "failure": "it broke"}]))
    shutil.copy(samples_path(result.path), tmp_path)
    heard = list[str]()
    resumed = run_shapes(again, heard.append)
    assert [(row["m"], row["failure"]) for row in resumed.rows] == [(9, "")]
    assert [row["m"] for row in json.loads(file.read_text())] == [24, 9]
    assert heard[0].startswith("[1/1] 9x20x16-tn")
    stopped = run_shapes(running(again, repeat=2, stop_after=1e-9), print)
    assert (stopped.rows, stopped.left) == ([], 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "other"),
    every(
        2,
        [
            ("driver", "linux 1"),
            ("method", "interleaved-v1"),
            ("libraries", {"numpy": "1.0"}),
            ("libraries", None),
            ("sources", "0" * 16),
        ],
    ),
)
def test_rows_that_rest_on_something_else_are_measured_again(ran, tmp_path, name: str, other: Any) -> None:
    request, result = ran
    again = running(request, out=tmp_path, resume=True)
    facts = json.loads(samples_path(result.path).read_text())
    first = next(iter(facts))
    facts[first][name] = other
    file = tmp_path / result.path.name
    file.write_text(result.path.read_text())
    samples_path(file).write_text(json.dumps(facts))
    [row] = run_shapes(again, print).rows
    assert json.loads(file.read_text()) == [row, result.rows[1]]
    assert json.loads(samples_path(file).read_text())[first][name] != other
    assert run_shapes(again, print).rows == []


def test_a_shape_without_a_kernel_keeps_its_row(ran, tmp_path) -> None:
    request, _ = ran
    wrong = dataclasses.replace(request, search={"families": ("simt",), "max_trials": 1})
    rows = run_shapes(running(wrong, out=tmp_path), print).rows
    assert [row["ours_us"] for row in rows] == [None, None]
    assert all("simt does not support" in row["failure"] for row in rows)
    assert summary(rows, ["ratio_apart"]) == "2 rows, 2 failed"


@pytest.mark.long
def test_a_shape_whose_job_breaks_in_a_worker_fails_alone(ran, tmp_path, monkeypatch) -> None:
    """A programming error in the device's process: a row with the reason, and the next shape follows."""
    request, _ = ran
    call = WorkerProcess.call

    def breaks(self: WorkerProcess, header: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        if header.get("op") == "trial" and header["problem"]["m"] == SMALL.m:
            header = {"op": "trial"}  # its worker misses a key
        return call(self, header, *arguments, **options)

    monkeypatch.setattr(WorkerProcess, "call", breaks)
    heard = list[str]()
    result = run_shapes(running(request, out=tmp_path), heard.append)
    assert (result.left, result.stopped) == (0, "")
    broken, other = result.rows
    assert broken["failure"] == "a worker process failed: KeyError: 'problem'"
    assert any(broken["failure"] in line for line in heard)
    assert (broken["ratio_apart"], broken["kernel"], other["failure"]) == (None, "", "")
    assert json.loads(result.path.read_text()) == result.rows
    facts, _ = json.loads(samples_path(result.path).read_text()).values()
    assert facts["failure"] == broken["failure"]
    assert facts["traceback"].startswith("Traceback (most recent call last)")
    assert summary(result.rows, ["ratio_apart"]) == (
        f"2 rows, 1 failed; ratio_apart {other['ratio_apart']:.3f} (geometric mean), "
        f"{other['ratio_apart']:.3f} (least)"
    )
    monkeypatch.undo()
    [again] = run_shapes(running(request, out=tmp_path, resume=True), print).rows
    assert (again["m"], again["failure"]) == (SMALL.m, "")


@pytest.mark.long
def test_a_race_that_breaks_keeps_what_its_job_found_and_where_it_broke(ran, tmp_path, monkeypatch) -> None:
    request, _ = ran

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(FreshTuner, "compare", broken)
    result = run_shapes(running(request, out=tmp_path), print)
    rows = result.rows
    assert [(row["failure"], row["trials"], row["ours_us"]) for row in rows] == [("a bug", 2, None)] * 2
    for facts in json.loads(samples_path(result.path).read_text()).values():
        assert "in broken" in facts["traceback"]
        assert facts["traceback"].endswith("RuntimeError: a bug")
    assert all(row["kernel"].startswith("host") for row in rows)


def test_several_failures_in_a_row_stop_the_run_and_its_exit_status_says_so(tmp_path, monkeypatch) -> None:
    shapes = tuple(dataclasses.replace(SMALL, m=m) for m in (1, 2, 3, 4, 5, 6))
    failing = {1, 2, 4, 5, 6}

    def measured(_request: ShapesRequest, _tuner: FreshTuner, shape: Shape) -> tuple[Row, Row]:
        figures = dict.fromkeys(run.UNKNOWN, 1.0) | {"tune_s": 1.0, "trials": 1, "failure": ""}
        return figures | (run.UNKNOWN | {"failure": "it broke"} if shape.m in failing else {}), {}

    monkeypatch.setattr(cli, "SUITE", shapes)
    monkeypatch.setattr(run, "_measured", measured)
    options = f"bench suite --device host --dtype float32 --out {tmp_path}".split()
    whole = CliRunner().invoke(app, options)
    assert whole.exit_code == 1
    assert whole.stdout.startswith("6 rows, 5 failed; ratio_back_to_back 1.000 (geometric mean)")
    assert "no result for 1x20x16: it broke" in whole.stderr
    assert "stopped" not in whole.stderr
    failing.add(3)
    stopped = CliRunner().invoke(app, options)
    assert (stopped.exit_code, stopped.stdout.splitlines()[0]) == (1, "3 rows, 3 failed")
    assert "stopped: 3 shapes in a row failed" in stopped.stderr
    assert "3 are left; --resume goes on with them" in stopped.stderr


@pytest.mark.parametrize("name", ["suite", "unseen"])
def test_an_unknown_group_is_refused(name) -> None:
    result = CliRunner().invoke(app, ["bench", name, "--only", "pentagons"])
    assert result.exit_code == 2
    told = " ".join(result.output.replace("│", " ").split())
    assert "no shape is called 'pentagons'" in told
    assert "--held-out chooses the shapes that are held out" in told


@pytest.mark.long
def test_the_suite_runs_from_its_options(tmp_path, monkeypatch) -> None:
    """A type that lacks the second shape; options of the run and of the search reach it."""
    small = Shape("squares", 32, 32, 32)
    monkeypatch.setattr(cli, "SUITE", (small, dataclasses.replace(small, accumulate=DType.FLOAT16)))
    options = f"--device host --dtype float32 --out {tmp_path} --max-trials 1 --rounds 8 --repeat 3"
    result = CliRunner().invoke(app, ["bench", "suite", *options.split(), "--json"])
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)
    assert (row["m"], row["accumulate"], row["repeat"], row["trials"]) == (32, None, 3, 1)
    [path] = tmp_path.glob("suite-v3-*-float32.json")
    assert json.loads(path.read_text()) == [row]


def test_a_run_tells_which_rows_others_disturbed(tmp_path, monkeypatch) -> None:
    def measured(_request: ShapesRequest, _tuner: FreshTuner, shape: Shape) -> tuple[Row, Row]:
        interference = ["others kept 1.00 cores busy"] if shape.m == 1 else []
        figures = dict.fromkeys(run.UNKNOWN, 1.0) | {"tune_s": 1.0, "trials": 1, "failure": ""}
        return figures | {"disturbed": interference}, {}

    monkeypatch.setattr(cli, "SUITE", tuple(dataclasses.replace(SMALL, m=m) for m in (1, 2)))
    monkeypatch.setattr(run, "_measured", measured)
    ran = CliRunner().invoke(app, f"bench suite --device host --dtype float32 --out {tmp_path}".split())
    assert ran.exit_code == 0
    told = [line for line in ran.stderr.splitlines() if "disturbed" in line]
    assert told == ["1x20x16 was disturbed: others kept 1.00 cores busy; measure it again on a quiet machine"]
