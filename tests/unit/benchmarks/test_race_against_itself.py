"""``make bench``: what it counts, and when it fails; its figures need a quiet machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab import race_against_itself as bench


def result(false_winners: int, found: int) -> dict[str, Any]:
    return {
        "cases": [{"races": 100, "false_winners": 0}, {"races": 100, "false_winners": false_winners}],
        "slower": {"races": 20, "found": found},
    }


@pytest.mark.parametrize(
    ("false_winners", "found", "code"), [(5, 19, 0), (6, 20, bench.FAILED), (0, 18, bench.FAILED)]
)
def test_it_fails_where_the_rules_find_too_much_or_too_little(
    false_winners: int, found: int, code: int
) -> None:
    assert bench.verdict(result(false_winners, found)) == code


def test_it_does_not_race_on_a_machine_that_is_not_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = iter([0.0, 1e6])
    monkeypatch.setattr(bench.HostDevice, "others", lambda _: {"busy": next(taken)})
    assert bench.main(["--races", "1"]) == bench.NOT_QUIET
    assert "the machine is not quiet" in capsys.readouterr().out


@pytest.mark.long
def test_samples_and_counts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says for each case what its samples say, and what others took of the machine meanwhile."""
    out, start = tmp_path / "bench.json", time.monotonic()
    monkeypatch.setattr(bench.HostDevice, "others", lambda _: {"busy": (time.monotonic() - start) / 2})
    assert bench.main(["--races", "2", "--sizes", "32", "--anyway", "--out", str(out)]) in (0, bench.FAILED)
    kept = json.loads(out.read_text())
    assert [case["heap"] for case in kept["cases"]] == ["fresh", "holes"]
    assert kept["races"] == 4
    assert all(len(row) == bench.ROUNDS for case in kept["samples_us"] for race in case for row in race)
    assert kept["false_winners"] == sum(case["false_winners"] for case in kept["cases"])
    assert kept["interference"] == pytest.approx({"busy": 0.5}, rel=0.01)
