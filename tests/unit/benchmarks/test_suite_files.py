"""The files of a suite over several runs."""

from __future__ import annotations

import dataclasses
import json

import pytest
from suite_samples import RUN, row_of

from benchmarks.common.pages import ReportError
from benchmarks.common.results import RESULTS
from benchmarks.suite.files import ResultFiles, load_log, load_provenance, load_rows, provenance_path
from benchmarks.suite.shapes import Shape

SQUARE, LARGE = Shape("squares", 4096, 4096, 4096), Shape("squares", 8192, 8192, 8192)


def keep(files: ResultFiles, *shapes: Shape) -> None:
    for shape in shapes:
        files.keep(row_of(shape, 100.0, 110.0), {"artifact": "a"}, {"shape": shape.name, "trials": 0})


def test_files_go_on_where_the_last_run_stopped(tmp_path) -> None:
    path, order = tmp_path / "new" / "suite-x-float16.json", [SQUARE.name, LARGE.name]
    keep(ResultFiles(path, RUN, order), LARGE)
    second = ResultFiles(path, RUN, order)
    assert list(second.rows) == [LARGE.name]
    assert second.differences() == []
    keep(second, SQUARE)
    assert [row.shape for row in load_rows(path)] == order
    assert list(load_provenance(path)["shapes"]) == order
    assert [entry["shape"] for entry in load_log(path)] == order


def test_files_of_another_driver_start_anew(tmp_path) -> None:
    path = tmp_path / "suite-x-float16.json"
    keep(ResultFiles(path, RUN, [SQUARE.name]), SQUARE)
    other = ResultFiles(path, RUN | {"driver": "nvidia 590", "rounds": 61}, [SQUARE.name])
    assert other.rows == {}
    assert other.differences() == ["driver: nvidia 580 there, nvidia 590 now"]
    keep(other, LARGE)
    assert [row.shape for row in load_rows(path)] == [LARGE.name]


def test_a_damaged_file_is_refused(tmp_path) -> None:
    path = tmp_path / "suite-x-float16.json"
    keep(ResultFiles(path, RUN, []), SQUARE)
    provenance_path(path).write_text("{")
    with pytest.raises(ReportError, match="move it away to start anew"):
        ResultFiles(path, RUN, [])


def test_the_recorded_results_are_of_the_suite() -> None:
    files = [path for path in RESULTS.glob("suite-*.json") if "." not in path.stem]
    for path in files:
        assert len(load_rows(path)) == len(load_provenance(path)["shapes"])
        json.dumps([dataclasses.asdict(row) for row in load_rows(path)], allow_nan=False)
