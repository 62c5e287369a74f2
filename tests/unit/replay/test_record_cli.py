"""What ``tilewright record`` refuses before it starts a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_samples import HOST
from typer.testing import CliRunner

from kernels.registry import FAMILIES
from service.cli.main import app
from tilewright.schema.problem import GemmProblem
from tuner.replay.formats import write_space
from tuner.replay.space import Entry, RecordedSpace, assemble

SHAPE = ["--m", "64", "--n", "64", "--k", "64", "--dtype", "float32"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["nothing"], 2, "there is no family 'nothing'"),
        (["host", "--knob", "mr"], 2, "write NAME=V1,V2, got 'mr'"),
        (["host", "--knob", "colour=red"], 1, "host has no knob colour"),
        (["host", "--knob", "mr=4,99"], 1, "mr must be one of 1, 2"),
        (["host", "--samples", "3"], 2, "--samples"),
        (["host", "--slow", "1"], 2, "--slow"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: list[str], code: int, reason: str) -> None:
    result = CliRunner().invoke(app, ["record", *words, *SHAPE, "--out", str(tmp_path / "x.t4.json.gz")])
    assert result.exit_code == code
    assert reason in " ".join(result.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_complete_recording_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.t4.json.gz"
    path.write_bytes(b"mine")
    result = CliRunner().invoke(app, ["record", "host", *SHAPE, "--out", str(path)])
    assert result.exit_code == 1
    assert "holds a complete recording" in result.stderr
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(("m", "reason"), [(0, "is no recording"), (32, "is no recording of host 64")])
def test_a_file_of_something_else_is_not_replaced(tmp_path: Path, m: int, reason: str) -> None:
    """The journal of a recording that was killed at once is empty."""
    path = tmp_path / "x.t4.json.gz"
    if m:
        write_space(recorded(m), path)
    else:
        path.write_bytes(b"mine")
    Path(f"{path}.journal").touch()
    before = path.read_bytes()
    result = CliRunner().invoke(app, ["record", "host", *SHAPE, "--out", str(path), "--resume"])
    assert result.exit_code == 1
    assert reason in result.stderr
    assert path.read_bytes() == before


def recorded(m: int) -> RecordedSpace:
    """A space of one config of the host."""
    host, problem = FAMILIES["host"], GemmProblem(m, 64, 64, "float32")
    config = host.heuristic_configs(problem, HOST)[0]
    points, entries = assemble(host.knobs, [[config[knob.name] for knob in host.knobs]], [Entry((1.0,))])
    return RecordedSpace("x", "host", host.knobs, points, entries, problem, HOST, {})
