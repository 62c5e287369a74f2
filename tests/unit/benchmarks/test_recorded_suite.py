"""The rows of a recorded suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.pages import ReportError
from benchmarks.common.recorded_suite import load_rows
from benchmarks.common.results import RESULTS


@pytest.mark.parametrize("text", ['[{"m": 1}]', "["])
def test_a_damaged_file_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "suite-x-float16.json"
    path.write_text(text)
    with pytest.raises(ReportError, match="not a list of suite rows"):
        load_rows(path)


def test_rows_name_the_problem_that_was_computed() -> None:
    rows = load_rows(RESULTS / "suite-sm_90-132sm-150gb-700w-float16.json")
    assert all((row.m, row.n, row.k) == (row.problem.m, row.problem.n, row.problem.k) for row in rows)
    assert {row.problem.accumulate.value for row in rows} == {row.accumulate for row in rows}
