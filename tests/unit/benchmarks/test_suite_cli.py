"""``tilewright bench suite`` as a command: what it refuses, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app

SHAPES = [{"m": 32, "n": 32, "k": 32}]


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Runs the verb on the host with a database of its own."""
    monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", f"sqlite:///{tmp_path}/suite.db")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.json").write_text(json.dumps(SHAPES))
    always = ["bench", "suite", "--device", "host", "--dtype", "float32", "--out", str(tmp_path / "out")]
    return lambda *options: CliRunner().invoke(app, [*always, *options])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "pentagons"], "no shape is called 'pentagons'"),
        (["--shapes", "nowhere.json"], "cannot read nowhere.json"),
        (["--shapes", "nowhere.json", "--held-out"], "exclude each other"),
        (["--no-tune", "--retune"], "exclude each other"),
        (["--rounds", "7"], "equal to 8"),
    ],
)
def test_wrong_usage_is_refused(suite, options, said) -> None:
    result = suite(*options)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_a_shape_without_a_winner_fails_the_command(suite, tmp_path) -> None:
    result = suite("--shapes", str(tmp_path / "mine.json"), "--no-tune", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == []
    assert "no result for 32x32x32-nt: not tuned yet, and --no-tune was given" in result.stderr


def test_a_shape_is_measured_and_printed(suite, tmp_path) -> None:
    result = suite("--shapes", str(tmp_path / "mine.json"), "--budget", "1", "--rounds", "8")
    assert result.exit_code == 0, result.output
    first, *others = result.stdout.split()
    assert first.endswith("-float32-mine.json")
    assert [row["shape"] for row in json.loads(Path(first).read_text())] == ["32x32x32-nt"]
    assert others[0].endswith(".provenance.json")
    assert "32 x 32 x 32" in result.stderr
