"""The sweep of all samplers over recorded spaces: what it writes, what it leaves, Optuna's samplers in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_family import toy_space

from benchmarks.search import report, sweep
from tuner.replay.formats import write_space
from tuner.search import samplers
from tuner.search.pool import Pool


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(report, "SPACES", tmp_path / "none")
    monkeypatch.setattr(sweep, "SPACES", {})
    report.recorded_heuristics.cache_clear()
    write_space(toy_space(0.01), tmp_path / "toys.t4.json.gz")
    yield tmp_path
    report.recorded_heuristics.cache_clear()


def test_a_sweep_writes_what_is_finished_and_goes_on_with_the_rest(results: Path) -> None:
    given = [str(results / "toys.t4.json.gz"), "--runs", "2", "--budget", "20"]
    out = results / "new" / "folder"
    given += ["--out", str(out), "--samplers"]
    sweep.main([*given, "random", "--stop-after", "0"])
    assert not list(out.glob("replay-*"))
    sweep.main([*given, "random", "optuna-tpe"])
    rows = json.loads((out / "search-summary.json").read_text())
    assert {row["sampler"] for row in rows} == {"random", "optuna-tpe"}
    assert "| optuna-tpe |" in (out / "search.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.glob("replay-*")}
    sweep.main([*given, "random", "optuna-tpe"])
    assert {path: path.stat().st_mtime_ns for path in out.glob("replay-*")} == before


@pytest.mark.parametrize("sampler", sweep.OPTUNA)
def test_asks_of_optuna_that_do_not_exist_or_come_again_are_no_trials(sampler: str) -> None:
    space = toy_space(0.0, lambda config: config["tile"] == 16)
    one = sweep.optuna_run(space, sampler, 1, 30)
    assert one.measured == len(one.found) <= 30 < one.asked <= 150
    assert list(one.found) == sorted(one.found)
    assert one.found == sweep.optuna_run(space, sampler, 1, 30).found


def test_only_asks_that_come_again_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def row_of(pool: Pool, params: dict[str, int]) -> int:
        asked.append(tuple(params.values()))
        return samplers.row_of(pool, params)

    monkeypatch.setattr(sweep, "row_of", row_of)
    one = sweep.optuna_run(toy_space(0.0), "optuna-cmaes", 1, 60)
    assert one.asked == len(asked) > one.measured
    assert one.repeated == len(asked) - len(set(asked))
