"""What other tuners do, beside the rows of a benchmark: their process, its failures, hints."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.models import model
from benchmarks.models.files import samples_path
from benchmarks.models.model import ModelRequest, run_model
from benchmarks.models.peers import Peer
from kernels.host.family import HOST
from kernels.registry import FAMILIES
from tilewright.schema.problem import DType, GemmProblem

HINT = {"tile_m": 64, "tile_n": 64, "tile_k": 16, "cluster": [1, 1], "split_k": 1, "stages": 2}
ANSWERS = {
    "torch": {"torch_us": 10.0, "torch_matmul_us": 12.0, "torch_tune_s": 3.0},
    "heuristics": {"hints": [HINT]},
}


def tiny(out, **changes) -> ModelRequest:
    request = ModelRequest(["qkv"], "host", 2, {"max_trials": 1}, DType.FLOAT32, (4, 8), out, 8)
    return dataclasses.replace(request, **changes)


@pytest.fixture(autouse=True)
def _small_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model.WEIGHTS, "qkv", (24, 16))


def test_rows_of_an_earlier_run_get_what_the_others_do(tmp_path, monkeypatch) -> None:
    before = run_model(tiny(tmp_path), print)
    assert all("torch_ratio" not in row for row in before.rows)
    monkeypatch.setattr(Peer, "ask", lambda self, _problem: ANSWERS[self._command[3]])
    monkeypatch.setattr(FAMILIES["host"].__class__, "configs_from_hint", follow)
    facts = json.loads(samples_path(before.path).read_text())
    result = run_model(tiny(tmp_path, resume=True, peers=True), print)
    assert [row["torch_ratio"] for row in result.rows] == [1.2, 1.2]
    for row, old in zip(result.rows, before.rows, strict=True):
        assert old.items() <= row.items()
        assert row["heuristics_ratio"] > 0
        assert row["heuristics_kernel"].startswith("host(")
    assert json.loads(result.path.read_text()) == result.rows
    assert json.loads(samples_path(result.path).read_text()).keys() == facts.keys()
    again = run_model(tiny(tmp_path, resume=True, peers=True), print)
    assert again.rows == []


def follow(_self, hint, problem, device):
    assert (hint.tile_m, hint.cluster) == (64, (1, 1))
    return HOST.heuristic_configs(problem, device)[:1]


def test_a_row_says_why_another_tuner_gave_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Peer, "ask", lambda *_: {"failure": "it is not here"})
    rows = run_model(tiny(tmp_path, peers=True), print).rows
    assert [row["m"] for row in rows] == [4, 8]
    assert {(row["torch_failure"], row["heuristics_failure"]) for row in rows} == {("it is not here",) * 2}
    assert {row["torch_ratio"] for row in rows} == {None}


def test_no_peer_starts_after_the_bound_and_the_file_is_whole(tmp_path) -> None:
    run_model(tiny(tmp_path), print)
    result = run_model(tiny(tmp_path, resume=True, peers=True, stop_after=1e-9), print)
    assert result.rows == []
    assert len(json.loads(result.path.read_text())) == 2


def test_the_process_answers_each_problem_with_a_failure_where_it_has_no_library() -> None:
    with Peer("heuristics", "NVIDIA H200") as peer:
        answers = [peer.ask(GemmProblem(m, 64, 64, DType.FLOAT64)) for m in (16, 32)]
        assert all("Error" in answer["failure"] for answer in answers)
        assert peer._process is not None
