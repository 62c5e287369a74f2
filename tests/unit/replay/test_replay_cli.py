"""``tilewright replay`` and the worker processes behind it, and the plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_family import toy_space
from typer.testing import CliRunner

from service.cli.main import app
from tilewright.schema.job import Sampler
from tuner.replay.formats import read_space, write_space
from tuner.replay.report import PlotUnavailable, plot, summarize
from tuner.replay.runner import ReplayPlan, replay


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "toy-space.t4.json.gz"
    write_space(toy_space(0.02), path)
    return path


def test_the_verb_prints_a_table_and_stores_what_it_printed(space: Path, tmp_path: Path) -> None:
    words = ["replay", str(space), "--runs", "3", "--budget", "25", "--seed", "4", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, "--processes", "2"])
    assert result.exit_code == 0, result.output
    table = [line.split() for line in result.stdout.splitlines()]
    assert [row[0] for row in table[:4]] == ["measured", "10", "25", "regret"]
    stored = json.loads((tmp_path / "replay-toy-space-staged.json").read_text())
    assert table[2][1] == f"{stored['summary']['checkpoints'][1]['fraction']['value']:.3f}"
    assert "3/3" in result.stderr
    # The same runs in this process, one after the other.
    here = replay(read_space(space), ReplayPlan(Sampler.STAGED, 3, 25, 4))
    assert [one["winner_config"] for one in stored["runs"]] == [one.winner_config for one in here]
    expected = summarize(here, 25).to_dict() | {"sampler_ms": stored["summary"]["sampler_ms"]}
    assert stored["summary"] == json.loads(json.dumps(expected))


def test_the_best_configs_of_another_space_are_tried_first(space: Path, tmp_path: Path) -> None:
    words = ["replay", str(space), "--runs", "1", "--budget", "20", "--initial-from", str(space)]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["plan"]["initial_configs"]) == 8
    assert report["summary"]["curve"][9] > 0.95
    assert (tmp_path / "replay-toy-space-staged-initial.json").exists()


def test_what_is_no_space_ends_with_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "absent.json")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot read")


def test_the_plot_is_drawn_or_says_what_it_needs(tmp_path: Path) -> None:
    summary = summarize(replay(toy_space(), ReplayPlan(Sampler.STAGED, 2, 12)), 12)
    try:
        written = plot({"staged": summary}, "toy", tmp_path / "curve")
    except PlotUnavailable as error:
        assert "extra 'bench'" in str(error)  # noqa: PT017
        return
    assert [path.name for path in written] == ["curve.png", "curve.svg"]
    assert all(path.stat().st_size for path in written)
