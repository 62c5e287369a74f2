"""The tables of benchmarks/results/search.md, and what the comparison with Kernel Tuner counts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_family import TOY, toy_space

from benchmarks.common import pages
from benchmarks.search import kernel_tuner_strategies
from benchmarks.search import report as report_
from tilewright.schema.job import Sampler
from tuner.replay.formats import write_space
from tuner.replay.report import Report, summarize
from tuner.replay.runner import ReplayPlan, replay


def write_replay(folder: Path, budget: int = 110, name: str = "toy-space") -> None:
    space = dataclasses.replace(toy_space(0.01), name=name)
    plan = ReplayPlan(Sampler.RANDOM, runs=2, budget=budget)
    results = replay(space, plan)
    Report.of(space, plan, summarize(results, budget), results).write(folder)


@pytest.mark.long
def test_a_table_has_replays_first_then_strategies_by_their_hundredth_trial(tmp_path: Path) -> None:
    write_replay(tmp_path)
    strategies = [
        kernel_tuner_strategies.summary(name, [[level] * 200] * 3, 200, 0.4)
        for name, level in (("slow", 0.5), ("fast", 0.96))
    ]
    (tmp_path / "kernel-tuner-toy-space.json").write_text(json.dumps({"strategies": strategies}))
    assert report_.spaces(tmp_path) == ["toy-space"]
    lines = report_.table("toy-space", tmp_path).splitlines()
    assert lines[0] == "### toy-space: 621 configs, 621 of them work"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    assert [row[0] for row in cells] == ["**tilewright random**", "Kernel Tuner fast", "Kernel Tuner slow"]
    assert cells[0][6] == ""  # a budget of 110 says nothing about 200
    assert cells[1][1:] == ["3", *["0.960 (0.960 .. 0.960)"] * 5, "1.00 / 1.00 / 1.00", "2"]


@pytest.mark.long
def test_each_space_has_a_table_of_its_own(tmp_path: Path) -> None:
    """Also where its name begins like another one's."""
    write_replay(tmp_path, budget=25)
    write_replay(tmp_path, budget=25, name="toy-space-h200")
    assert report_.spaces(tmp_path) == ["toy-space", "toy-space-h200"]
    assert report_.table("toy-space", tmp_path).count("**tilewright") == 1


def test_a_summary_is_one_object_a_replay(tmp_path: Path) -> None:
    write_replay(tmp_path)
    data = json.loads((tmp_path / "replay-toy-space-random.json").read_text())
    found = report_.summarized(data)
    at = {point["trials"]: point["fraction"] for point in data["summary"]["checkpoints"]}
    assert [found[f"at{trials}"] for trials in (25, 50, 100)] == [at[n]["value"] for n in (25, 50, 100)]
    assert (found["low100"], found["high100"]) == (at[100]["low"], at[100]["high"])
    assert found["at200"] is None  # beyond the budget
    assert found["share95_at200"] is None
    assert (found["space"], found["sampler"], found["runs"]) == ("toy-space", "random", 2)


def test_only_live_re_tunes_that_were_raced_are_shown(tmp_path: Path) -> None:
    report = {"space": {"name": "toys"}, "plan": {"budget": 100}, "tunes": []}
    (tmp_path / "live-retunes-broken.json").write_text(json.dumps(report))
    assert report_.live(tmp_path) == "None was recorded yet.\n"
    figures = {"tunes": 20, "failed": 1, "regret_median": 0.0012, "regret_p95": 0.031, "regret_most": 0.04}
    figures |= {"in_tie_set": 12, "different_winners": 4, "flip_rate": 0.625, "best_recorded_rank": 3}
    tunes = [{"seconds": {"wall": wall, "gpu": 1.0}} for wall in (1.0, 2.0, 30.0)]
    raced = report | {"figures": figures, "tunes": tunes, "race": {"candidates": [{}] * 9}}
    (tmp_path / "live-retunes-toys.json").write_text(json.dumps(raced))
    lines = report_.live(tmp_path).splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == [
        "toys", "20 x 100, 1 failed", "0.12 %", "3.10 %", "4.00 %", "12 of 19", "4", "0.62", "3 of 9",
        "2.0 (1.0 .. 30.0)", "1.0 (1.0 .. 1.0)",
    ]  # fmt: skip


def test_the_page_gets_both_parts(tmp_path: Path) -> None:
    for pattern in ("replay-*.json", "live-retunes-*.json", "kernel-tuner-*.json"):
        for path in report_.RESULTS.glob(pattern):
            (tmp_path / path.name).symlink_to(path)
    report_.renew(tmp_path)
    page, summary = tmp_path / report_.PAGE.name, tmp_path / report_.SUMMARY.name
    assert page.read_text() == report_.PAGE.read_text()
    assert summary.read_text() == report_.SUMMARY.read_text()
    for name in ("search", "live-retunes"):
        first, last = pages.marks(name)
        assert page.read_text().partition(first)[2].partition(last)[0].strip()


def test_a_strategy_that_ends_early_keeps_what_it_found() -> None:
    one = kernel_tuner_strategies.summary("x", [[0.5, 0.9], [0.7] * 25], 25, 0.1)
    points = {point["trials"]: point["fraction"] for point in one["checkpoints"]}
    assert points == {10: pytest.approx(0.8), 25: pytest.approx(0.8)}
    assert one["evaluations"] == 13.5


def test_only_unique_valid_evaluations_count() -> None:
    """Four evaluations, one of them repeated and one failed: two count."""
    comparison = kernel_tuner_strategies.Comparison((), 1, 200, {"1": 4.0, "2": 2.0})
    space = SimpleNamespace(tune_params={"x": [1, 2]})
    results = [
        {"x": 1, "time": 4.1},
        {"x": 1, "time": 4.1},
        {"x": 3, "time": "InvalidConfig"},
        {"x": 2, "time": 2.1},
    ]
    assert comparison._curve(results, space) == [0.5, 1.0]


def test_kernel_tuner_reads_our_recordings(tmp_path: Path) -> None:
    path = tmp_path / "toy.t4.json.gz"
    write_space(toy_space(0.0, lambda config: config["tile"] == 16), path)
    cache = kernel_tuner_strategies.read_cache(path)
    assert len(cache["cache"]) == 621
    assert cache["tune_params_keys"] == [knob.name for knob in TOY.knobs]
    assert cache["cache"]["48,5,columns,2,4"]["time"] == pytest.approx(0.1)  # the optimum, 100 us
    assert cache["cache"]["16,1,rows,1,1"]["time"] == "RuntimeFailedConfig"


def test_heuristic_configs_alone_are_the_best_of_them_by_true_times() -> None:
    path = report_.SPACES / "wgmma-64x4096x14336-h200.t4.json.gz"
    space = report_.read_space(path)
    found = report_.heuristics_alone(space)
    assert found is not None
    own = report_.RecordedFamily(space).heuristic_configs(space.problem, space.device)
    assert found["initial_configs"] == len(own) < 25
    assert (
        found["at25"] == found["at200"] == pytest.approx(max(space.fraction(space.row(one)) for one in own))
    )
    assert report_.heuristics_alone(toy_space()) is None


def test_the_table_of_a_space_shows_what_heuristic_configs_reach_without_a_search() -> None:
    row = next(one for one in report_.recorded_heuristics() if one["space"] == "wgmma-64x4096x14336-h200")
    head, *lines = report_.table(row["space"]).splitlines()
    alone = f"| {row['initial_configs']} heuristic configs alone | 1 |  | {row['at25']:.3f} ("
    assert [line for line in lines if line.startswith(alone)]
    assert not any("alone" in line for line in report_.table("gemm_RTX_3090").splitlines())
    assert row["space"] in head
