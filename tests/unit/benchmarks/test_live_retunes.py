"""Live re-tunes: the arithmetic of regret and flips, and a real run on this machine's CPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from host_samples import EIGHT_CONFIGS
from toy_family import toy_space
from typer.testing import CliRunner

from benchmarks.common import fresh
from benchmarks.common.fresh import FreshTuner
from benchmarks.search import live_retunes
from benchmarks.search import report as report_
from benchmarks.search.live_retunes import (
    Regret,
    Retune,
    check_device,
    figures,
    flip_rate,
    rebuilt,
    regrets,
)
from kernels.registry import FAMILIES
from service.cli.main import app
from tilewright.artifact import Artifact, Grid, LaunchPlan, Resources, Serves
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tuner.devices.host import query_host
from tuner.replay.formats import read_space
from tuner.replay.space import RecordedSpace, SpaceError


def artifact(name: str) -> Artifact:
    plan = LaunchPlan("elf", "cpu", "gemm", (1, 1, 1), Grid(8, 8), (), Serves.of(GemmProblem(8, 8, 8)))
    return Artifact(plan, Resources(), "a" * 64, "cc", name.encode())


def tuned(won: Artifact | None) -> Retune:
    config = Config.of("host", {"mr": 4}) if won else None
    return Retune(0, config, won, "" if won else "it failed", 6, {"wall": 10.0, "gpu": 5.0})


def test_regret_is_paired_with_the_fastest_of_the_same_rounds() -> None:
    """Round by round the second one is 2 % behind, whatever the clock does."""
    clock = [1.0, 1.1, 1.2, 1.1, 1.0, 0.9, 0.8, 0.9]
    rows = {"slow": [102.0 * c for c in clock], "fast": [100.0 * c for c in clock]}
    found = regrets(rows)
    assert list(found) == ["fast", "slow"]
    assert found["fast"] == Regret(0.0, 0.0, 0.0)
    assert [found["slow"].value, found["slow"].low, found["slow"].high] == pytest.approx([0.02] * 3)
    assert (found["fast"].tied, found["slow"].tied) == (True, False)


def test_a_kernel_that_leads_in_some_rounds_is_tied() -> None:
    even = [100.0] * 8
    # Eight rounds enclose the median (101 + 102) / 2 by their extremes, 99 and 104.
    other = [99.0, 101.0, 101.0, 101.0, 102.0, 102.0, 103.0, 104.0]
    found = regrets({"even": even, "other": other})["other"]
    assert [found.value, found.low, found.high] == pytest.approx([0.015, -0.01, 0.04])
    assert found.tied


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="8 rounds or more, got 7"):
        regrets({"one": [1.0] * 7, "other": [2.0] * 7})


@pytest.mark.parametrize(
    ("winners", "rate"),
    [
        ("aaaa", 0.0),
        ("abcd", 1.0),
        # Pairs: 6; of the same kernel: 3 among the three a.
        ("aaab", 0.5),
        # Pairs: 10; the same: 1 + 1.
        ("aabbc", 0.8),
        ("a", None),
    ],
)
def test_flips_are_the_share_of_pairs_that_differ(winners: str, rate: float | None) -> None:
    assert flip_rate(list(winners)) == (rate if rate is None else pytest.approx(rate))


def test_figures_are_those_of_the_winners() -> None:
    best, near, far = artifact("best"), artifact("near"), artifact("far")
    rows = {best.digest: [100.0] * 8, near.digest: [101.0] * 8, far.digest: [104.0] * 8}
    found = figures([tuned(won) for won in (best, near, near, far, None)], regrets(rows), near.digest)
    assert (found["tunes"], found["failed"]) == (5, 1)
    # Regrets 0, 1, 1 and 4 %: the 95th percentile lies 0.95 * 3 = 2.85 steps up, at 1 + 0.85 * 3 %.
    assert found["regret_median"] == pytest.approx(0.01)
    assert found["regret_p95"] == pytest.approx(0.0355)
    assert found["regret_most"] == pytest.approx(0.04)
    assert found["in_tie_set"] == 1
    assert found["different_winners"] == 3
    assert found["flip_rate"] == pytest.approx(5 / 6)
    assert found["best_recorded_rank"] == 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight configs, measured on this machine by the command line."""
    folder = tmp_path_factory.mktemp("recorded")
    path = folder / "host.t4.json.gz"
    env = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "TILEWRIGHT_COMPILE_PROCESSES": "2"}
    words = ["record", "host", *EIGHT_CONFIGS, "--device", "host", "--out", str(path)]
    result = CliRunner().invoke(app, words, env=env)
    assert result.exit_code == 0, result.output
    return path


def confirm(recorded: Path, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    words = [str(recorded), "--device", "host", "--out", str(out)]
    quick = ["--budget", "6", "--best", "3", "--rounds", "8", "--compile-processes", "2"]
    code = live_retunes.main([*words, *quick, *options])
    return code, json.loads(out.read_text())


@pytest.fixture(scope="module")
def report(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("live") / "live-retunes-host.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "QUIET_WAIT_S", 0.0)
        code, found = confirm(recorded, out, "--tunes", "2", "--seed", "5")
    assert code == 0
    assert report_.live(out.parent).count("| host |") == 1
    return found


@pytest.mark.long
def test_each_re_tune_is_a_job_of_its_own(report: dict[str, Any]) -> None:
    assert [(one["seed"], one["failure"]) for one in report["tunes"]] == [(5, ""), (6, "")]
    for one in report["tunes"]:
        assert one["trials"] == 6
        assert 0 < one["seconds"]["gpu"] < one["seconds"]["wall"]


@pytest.mark.long
def test_winners_and_the_best_recorded_race_together(report: dict[str, Any], recorded: Path) -> None:
    space = read_space(recorded)
    race = report["race"]
    kernels = {one["artifact"]: one for one in race["candidates"]}
    assert len(kernels) == len(race["candidates"])
    for tune in report["tunes"]:
        assert tune["seed"] in kernels[tune["artifact"]]["won_seeds"]
    raced = {text for one in race["candidates"] for text in one["configs"]}
    assert {str(config) for config in space.best(3)} <= raced
    assert all(len(one["samples_us"]) == race["rounds"] == 8 for one in race["candidates"])
    medians = [one["median_us"] for one in race["candidates"]]
    assert medians == sorted(medians)
    assert race["candidates"][0]["regret"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    [best] = [one for one in race["candidates"] if str(space.best(1)[0]) in one["configs"]]
    rank = 1 + race["candidates"].index(best)
    assert report["figures"]["best_recorded_rank"] == rank


@pytest.mark.long
def test_the_report_says_what_it_rests_on(report: dict[str, Any], recorded: Path) -> None:
    assert report["space"]["configs"] == 8
    assert report["space"]["provenance"]["source_digest"] == read_space(recorded).provenance["source_digest"]
    assert report["device_class"] == query_host().device_class.id
    assert report["plan"]["rounds"] == 8
    assert report["race"]["vendor"] == "numpy"
    assert "--tunes 2" in report["command"]


@pytest.mark.long
def test_nothing_starts_after_the_time_is_up(recorded: Path, tmp_path: Path) -> None:
    code, found = confirm(recorded, tmp_path / "live.json", "--max-seconds", "1e-9")
    assert (code, found["tunes"], "figures" in found) == (1, [], False)


def other_device(space: RecordedSpace) -> RecordedSpace:
    return dataclasses.replace(
        space, device=dataclasses.replace(space.device, sm_count=space.device.sm_count + 1)
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_device, "was recorded on .*, this is .*; use a space of this one"),
        (lambda _space: toy_space(), "toy-space is of toy, which is none of"),
    ],
    ids=["another device", "another's kernel"],
)
def test_a_space_that_says_nothing_about_this_device_is_refused(recorded: Path, change, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        check_device(change(read_space(recorded)), query_host())


def test_recorded_configs_that_are_no_longer_valid_are_passed_over(recorded: Path, monkeypatch) -> None:
    space, host = read_space(recorded), FAMILIES["host"]
    gone, *rest = space.best(3)
    refused = {gone}
    why_invalid = host.why_invalid
    monkeypatch.setattr(
        host, "why_invalid", lambda config, *of: "gone" if config in refused else why_invalid(config, *of)
    )
    with FreshTuner("host", 2) as tuner:
        assert list(rebuilt(space, 2, tuner)) == rest
        refused.update(space.best(len(space)))
        with pytest.raises(SpaceError, match=r"no config of .* is valid any more: record it anew"):
            rebuilt(space, 2, tuner)


@pytest.mark.parametrize("option", ["--tunes=0", "--rounds=7", "--best=0", "--budget=0"])
def test_wrong_numbers_are_refused_before_anything_runs(tmp_path: Path, option: str, capsys) -> None:
    with pytest.raises(SystemExit):
        live_retunes.main([str(tmp_path / "nowhere.t4.json.gz"), option])
    assert "or more, got" in capsys.readouterr().err
