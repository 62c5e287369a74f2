"""``make bench``: what it counts, and when it fails; its figures need a quiet machine."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    ("disturbed", "said"),
    [
        (bench.Disturbance(0.1, 0.02, 30.0), []),
        (bench.Disturbance(busy=0.5), ["others keep 0.50 cores busy"]),
        (bench.Disturbance(stolen=0.05, switches=90), ["5.0% of a core was stolen", "90 involuntary"]),
    ],
    ids=str,
)
def test_a_machine_that_is_not_quiet_is_told(disturbed: bench.Disturbance, said: list[str]) -> None:
    reasons = disturbed.reasons()
    assert len(reasons) == len(said)
    assert all(part in reason for part, reason in zip(said, reasons, strict=True))


@pytest.mark.long
def test_samples_and_counts_are_kept(tmp_path: Path) -> None:
    """The file says for each case what its samples say."""
    out = tmp_path / "bench.json"
    assert bench.main(["--races", "2", "--sizes", "32", "--anyway", "--out", str(out)]) in (0, bench.FAILED)
    kept = json.loads(out.read_text())
    assert [case["heap"] for case in kept["cases"]] == ["fresh", "holes"]
    assert kept["races"] == 4
    assert all(len(row) == bench.ROUNDS for case in kept["samples_us"] for race in case for row in race)
    assert kept["false_winners"] == sum(case["false_winners"] for case in kept["cases"])
    assert kept["disturbance"]["busy"] >= 0
