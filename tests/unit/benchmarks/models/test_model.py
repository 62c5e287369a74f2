"""``tilewright bench model`` on the host: rows, resumption, and what other tuners do beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from benchmarks.common import fresh
from benchmarks.common.options import RowOptions
from benchmarks.models import model
from benchmarks.models.files import samples_path
from benchmarks.models.model import ModelRequest, run_model
from benchmarks.models.peers import Peer
from benchmarks.models.run import BenchResult
from kernels.host.family import HOST
from kernels.registry import FAMILIES
from service.cli.main import app
from tilewright.schema.problem import DType, GemmProblem
from tuner.job import first_configs

HINT = {"tile_m": 64, "tile_n": 64, "tile_k": 16, "cluster": [1, 1], "split_k": 1, "stages": 2}
ANSWERS = {
    "torch": {"torch_us": 10.0, "torch_matmul_us": 12.0, "torch_tune_s": 3.0},
    "heuristics": {"hints": [HINT]},
}


def tiny(out, **changes) -> ModelRequest:
    search = changes.pop("search", {"max_trials": 2})
    run = RowOptions(device="host", out=out, rounds=8, **changes)
    return ModelRequest(["qkv"], 2, run, search, DType.FLOAT32, (4, 8))


@pytest.fixture(scope="module", autouse=True)
def _small_weight() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model.WEIGHTS, "qkv", (24, 16))
        patch.setattr(fresh, "QUIET_WAIT_S", 0.0)
        yield


@pytest.fixture(scope="module")
def ran(_small_weight: None, tmp_path_factory) -> BenchResult:
    """Two rows of a weight, tuned and raced for real."""
    return run_model(tiny(tmp_path_factory.mktemp("model")), print)


@pytest.fixture
def earlier(ran: BenchResult, tmp_path):
    """A folder with the files of that run."""
    return shutil.copytree(ran.path.parent, tmp_path / "earlier")


@pytest.mark.long
def test_each_row_of_a_weight_has_its_figures(ran: BenchResult, earlier) -> None:
    assert json.loads(ran.path.read_text()) == ran.rows
    assert [(row["n"], row["k"], row["m"], row["level"]) for row in ran.rows] == [
        (24, 16, 4, "full"),
        (24, 16, 8, "full"),
    ]
    for row in ran.rows:
        assert row["failure"] == ""
        assert row["ratio_apart"] > 0 <= row["regret"]
        assert row["kernel"].startswith("host(")
        assert 0 < row["tune_s"] < row["job_s"]
        assert "torch_ratio" not in row
    again = run_model(tiny(earlier, resume=True), print)
    assert (again.rows, again.left) == ([], 0)


def test_the_rows_of_a_ladder_that_breaks_say_why_and_where(tmp_path, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(fresh, "run_job", broken)
    result = run_model(tiny(tmp_path), print)
    assert [(row["m"], row["failure"]) for row in result.rows] == [(4, "a bug"), (8, "a bug")]
    for facts in json.loads(samples_path(result.path).read_text()).values():
        assert "in broken" in facts["traceback"]


def test_a_row_without_a_winner_says_why(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        first_configs, "why_too_large", lambda problem, _: "too large" if problem.m == 8 else None
    )
    rows = run_model(tiny(tmp_path), print).rows
    assert [(row["m"], row["failure"]) for row in rows] == [(4, ""), (8, "too large")]


@pytest.mark.long
def test_rows_of_an_earlier_run_get_what_the_others_do(ran: BenchResult, earlier, monkeypatch) -> None:
    monkeypatch.setattr(Peer, "ask", lambda self, _problem: ANSWERS[self._command[3]])
    monkeypatch.setattr(FAMILIES["host"].__class__, "configs_from_hint", follow)
    facts = json.loads(samples_path(ran.path).read_text())
    result = run_model(tiny(earlier, resume=True, peers=True), print)
    assert [row["torch_ratio"] for row in result.rows] == [1.2, 1.2]
    for row, old in zip(result.rows, ran.rows, strict=True):
        assert old.items() <= row.items()
        assert row["heuristics_ratio"] > 0
        assert row["heuristics_kernel"].startswith("host(")
    assert json.loads(result.path.read_text()) == result.rows
    assert json.loads(samples_path(result.path).read_text()).keys() == facts.keys()
    again = run_model(tiny(earlier, resume=True, peers=True), print)
    assert again.rows == []


def follow(_self, hint, problem, device):
    assert (hint.tile_m, hint.cluster) == (64, (1, 1))
    return HOST.heuristic_configs(problem, device)[:1]


def test_a_row_says_why_another_tuner_gave_nothing(earlier, monkeypatch) -> None:
    monkeypatch.setattr(Peer, "ask", lambda *_: {"failure": "it is not here"})
    rows = run_model(tiny(earlier, resume=True, peers=True), print).rows
    assert [row["m"] for row in rows] == [4, 8]
    assert {(row["torch_failure"], row["heuristics_failure"]) for row in rows} == {("it is not here",) * 2}
    assert {row["torch_ratio"] for row in rows} == {None}


def test_no_peer_starts_after_the_bound_and_the_file_is_whole(earlier) -> None:
    result = run_model(tiny(earlier, resume=True, peers=True, stop_after=1e-9), print)
    assert result.rows == []
    assert len(json.loads(result.path.read_text())) == 2


def test_the_process_answers_each_problem_with_a_failure_where_it_has_no_library() -> None:
    with Peer("heuristics", "NVIDIA H200") as peer:
        answers = [peer.ask(GemmProblem(m, 64, 64, DType.FLOAT64)) for m in (16, 32)]
        assert all("Error" in answer["failure"] for answer in answers)
        assert peer._process is not None


def test_an_unknown_weight_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "model", "--weights", "gate"])
    assert result.exit_code == 2
    assert "no weight is called 'gate'" in " ".join(result.output.replace("│", " ").split())
