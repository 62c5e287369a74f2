"""What a threshold of the expected gain saves and loses on recorded spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_family import toy_space

from benchmarks.search import stopping
from tuner.replay.formats import write_space


def test_a_run_ends_at_the_first_gain_below_the_threshold() -> None:
    first = ([0.5, 0.8, 0.9, 1.0], [None, 0.3, 0.1, 0.0])
    second = ([0.8, 0.8, 0.8, 0.8], [None, 0.2, 0.2, 0.2])
    # The first run ends after three trials at 0.9, the second never.
    assert stopping.ended([first, second], 0.15) == {"trials": 3.5, "loss": 0.05}
    assert stopping.ended([first, second], 0.25) == {"trials": 2.5, "loss": 0.05}
    assert stopping.ended([first], 0.35) == {"trials": 2.0, "loss": 0.2}


def test_every_space_has_every_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toys.t4.json.gz"
    write_space(toy_space(0.01), path)
    monkeypatch.setattr(stopping, "PATH", tmp_path / "stopping.json")
    stopping.main([str(path), "--runs", "2", "--budget", "40"])
    stored = json.loads((tmp_path / "stopping.json").read_text())
    found = stored["spaces"]["toy-space"]
    trials = [found[str(one)]["trials"] for one in stopping.THRESHOLDS]
    assert trials == sorted(trials, reverse=True)
    assert trials[-1] < 40
    assert stored["mean"] == found
