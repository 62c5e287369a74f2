"""Races of a kernel with itself under a job's rules, on this CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.lab import race_aa

SMALL = ["--device", "host", "--dtype", "float32", "--shapes", "32x32x32"]


@pytest.mark.long
def test_races_of_all_stages_are_kept_and_added_to(tmp_path: Path) -> None:
    for seconds in ("3", "0"):
        race_aa.main([*SMALL, "--seconds", seconds, "--out", str(tmp_path)])
    (path,) = tmp_path.glob("race-aa-*.json")
    found = json.loads(path.read_text())
    assert found["races"] + found["disturbed"] == len(found["rows"]) >= 3
    assert {row["stage"] for row in found["rows"]} == {"final", "head-to-head", "quick"}
    assert sum(one["races"] for one in found["by_problem"]) == found["races"]
    for row in found["rows"]:
        assert row["rounds"] == [len(samples) for samples in row["samples_us"]]
        assert row["dropped"] == (row["rounds"][0] != row["rounds"][1])
        assert row["false_winner"] == (not row["dropped"] and not row["low"] <= 1 <= row["high"])
    quiet = [row for row in found["rows"] if not row["interference"]]
    assert found["false_winners"] == sum(row["false_winner"] for row in quiet)
    assert found["dropped"] == sum(row["dropped"] for row in quiet)
