"""``tilewright replay`` and the worker processes behind it, and the plot."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from toy_family import toy_space
from typer.testing import CliRunner

from service.cli.main import app
from tilewright.schema.job import Sampler
from tuner.replay.formats import read_space, to_t4, write_space
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


def others(space: Path, folder: Path, slower: float = 1.5) -> Path:
    """A T4 file of another tool: the same kernel on another device, without metadata."""
    results = to_t4(read_space(space))["results"]
    for one in results:
        one["times"]["runtimes"] = [slower * time for time in one["times"]["runtimes"]]
    path = folder / "another_GPU.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schema_version": "1.0.0", "results": results}).encode()))
    return path


def test_the_best_configs_of_another_tools_space_are_tried_first(space: Path, tmp_path: Path) -> None:
    words = ["replay", str(space), "--runs", "1", "--budget", "20", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, [*words, "--initial-from", str(others(space, tmp_path))])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    recorded = read_space(space)
    assert report["plan"]["initial_configs"] == [str(config) for config in recorded.best(8)]
    assert report["summary"]["curve"][9] > 0.95
    assert (tmp_path / "replay-toy-space-staged-initial.json").exists()


def test_a_space_gives_itself_no_initial_configs(space: Path, tmp_path: Path) -> None:
    copy = others(space, tmp_path, slower=1.0)
    for one in (space, copy):
        result = CliRunner().invoke(app, ["replay", str(space), "--runs", "1", "--initial-from", str(one)])
        assert result.exit_code == 1
        assert "holds the same times" in result.stderr, result.stderr


def test_a_space_of_another_kernel_gives_no_initial_configs(space: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    result = {"times": {"runtimes": [0.5]}, "invalidity": "correct", "configuration": {"x": 1, "tile": 16}}
    path.write_text(json.dumps({"results": [result]}))
    ran = CliRunner().invoke(app, ["replay", str(space), "--runs", "1", "--initial-from", str(path)])
    assert ran.exit_code == 1
    assert "not of the same kernel" in ran.stderr
    assert ran.stderr.rstrip().endswith("x"), ran.stderr


def test_a_space_of_one_config_is_nothing_to_search(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    result = {"times": {"runtimes": [0.5]}, "invalidity": "correct", "configuration": {"x": 1}}
    path.write_text(json.dumps({"results": [result]}))
    ran = CliRunner().invoke(app, ["replay", str(path), "--runs", "1"])
    assert ran.exit_code == 1
    assert ran.stderr == f"error: {path} holds one config, and a search needs a choice: record more\n"


def test_nothing_is_stored_unless_asked(space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    result = CliRunner().invoke(app, ["replay", str(space), "--runs", "1", "--budget", "12"])
    assert result.exit_code == 0, result.output
    assert "stored" not in result.stdout
    assert list(here.iterdir()) == []


def test_an_unfinished_space_is_doubted_aloud_and_in_the_results(tmp_path: Path) -> None:
    rows = {str(i): {"x": i, "time": 1.0 + i} for i in range(1, 30)} | {
        "30": {"x": 30, "time": "InvalidConfig"}
    }
    cache = {
        "device_name": "a GPU",
        "kernel_name": "k",
        "tune_params_keys": ["x"],
        "tune_params": {"x": list(range(1, 31))},
        "cache": rows,
    }
    path = tmp_path / "open.json"
    path.write_text(json.dumps(cache).removesuffix("}}") + ",")
    result = CliRunner().invoke(app, ["replay", str(path), "--runs", "1", "--budget", "12", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["configs"], report["working"]) == (30, 29)
    assert report["doubts"] == [
        "open: the program that wrote it never closed it, so the optimum may be missing"
    ]
    assert "never closed" in result.stderr


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
