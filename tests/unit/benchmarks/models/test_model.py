"""``tilewright bench model`` without a GPU: a ladder on the host, its rows, resumption."""

from __future__ import annotations

import dataclasses
import json

from typer.testing import CliRunner

from benchmarks.models import model
from benchmarks.models.model import ModelRequest, run_model
from service.cli.main import app
from tilewright.schema.problem import DType


def test_each_row_of_a_weight_has_its_figures(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(model.WEIGHTS, "qkv", (24, 16))
    options = {"max_trials": 2}
    request = ModelRequest(["qkv"], "host", 2, options, DType.FLOAT32, (4, 8), tmp_path, 8)
    result = run_model(request, print)
    assert json.loads(result.path.read_text()) == result.rows
    assert [(row["n"], row["k"], row["m"], row["level"]) for row in result.rows] == [
        (24, 16, 4, "full"),
        (24, 16, 8, "full"),
    ]
    for row in result.rows:
        assert row["failure"] == ""
        assert row["ratio_apart"] > 0 <= row["regret"]
        assert row["kernel"].startswith("host(")
        assert 0 < row["tune_s"] < row["job_s"]
    again = run_model(dataclasses.replace(request, resume=True), print)
    assert (again.rows, again.left) == ([], 0)


def test_an_unknown_weight_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "model", "--weights", "gate"])
    assert result.exit_code == 2
    assert "no weight is called 'gate'" in " ".join(result.output.replace("│", " ").split())
