"""What a threshold of the expected gain saves and loses on recorded spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_family import toy_space

from benchmarks.search import stopping
from tuner.job.loop import SETTLED
from tuner.replay.formats import write_space


def test_a_run_ends_at_the_first_gain_below_the_threshold_once_its_best_is_settled() -> None:
    still = 40 - 1 - SETTLED
    first = ([0.5, *[0.9] * (SETTLED + 1), *[1.0] * (still - 1)], [None, *[0.1] * 39])
    second = ([0.8] * 40, [None, *[0.2] * 39])
    # The first run found its 0.9 in the second trial and ends 20 trials later, the second never.
    ended = 2 + SETTLED
    assert stopping.ended([first, second], 0.15, initial=False) == {"trials": (ended + 40) / 2, "loss": 0.05}
    assert stopping.ended([first, second], 0.25, initial=False) == {
        "trials": (ended + 1 + SETTLED) / 2,
        "loss": 0.05,
    }
    assert stopping.ended([first, second], 0.05, initial=False) == {"trials": 40.0, "loss": 0.0}


def test_a_run_with_initial_configs_ends_once_its_best_is_settled() -> None:
    run = ([0.5, *[0.9] * 39], [None, *[0.2] * 39])
    assert stopping.ended([run], 0.0, initial=True) == {"trials": 2.0 + SETTLED, "loss": 0.0}


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
