"""The stored winner is a candidate of a job's final, and races with interference settle nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from toy_family import DEVICE, PROBLEM, TOY
from tune_lab import VENDOR_US, Lab

from kernels.registry import FAMILIES
from tilewright.schema.config import Config
from tilewright.schema.trial import BestConfig, Outcome
from tuner.job import selection
from tuner.measure.race import RaceSamples
from tuner.search.points import valid_points


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def stored(config: Config, **changes: Any) -> BestConfig:
    """A winner of an earlier job."""
    lab = Lab()
    found = lab.tune(max_trials=1)
    assert found is not None
    digest = lab.builder.artifact(config).digest
    return dataclasses.replace(found, config=config, artifact=digest, job_id="job-0", **changes)


def every_config() -> list[Config]:
    return [TOY.at(point) for point in valid_points(TOY, PROBLEM, DEVICE)]


def fastest_config() -> Config:
    return min(every_config(), key=TOY.cost)


def test_the_stored_winner_races_its_challengers_and_loses_by_that_race_alone() -> None:
    """Its lead of a noisy day, 3.36 [3.2, 3.7], protects it from nothing."""
    slow = max(every_config(), key=TOY.cost)
    lab = Lab()
    lab.recorder.stored = stored(slow, speedup=3.36, speedup_low=3.2, speedup_high=3.7)
    best = lab.tune(max_trials=60, seed=2)
    assert best is not None
    final, head_to_head = lab.bench.races
    assert final.count(str(slow)) == 1
    assert head_to_head == (str(best.config),)
    assert best.config != slow
    assert lab.recorder.best == best


def test_the_stored_winner_keeps_its_place_where_a_job_finds_nothing_better() -> None:
    kept = fastest_config()
    lab = Lab()
    lab.recorder.stored = stored(kept, speedup=0.5, speedup_low=0.4, speedup_high=0.6)
    best = lab.tune(max_trials=1)
    assert best is not None
    assert (best.config, best.job_id) == (kept, "job-1")
    assert best.artifact == lab.builder.artifact(kept).digest
    assert best.speedup == pytest.approx(VENDOR_US / TOY.cost(kept), rel=0.01)
    assert str(kept) in lab.bench.tried, "it is checked like every candidate"


@pytest.mark.parametrize("fault", ["it does not build", "it is wrong", "its family went"])
def test_a_stored_winner_that_is_nothing_today_is_left_out(fault: str) -> None:
    kept = fastest_config()
    lab = Lab()
    if fault == "it does not build":
        lab.builder.fails = lambda config: config == kept
    elif fault == "it is wrong":
        lab.bench.on_trial = lambda text: Outcome.WRONG_RESULT if text == str(kept) else Outcome.OK
    else:
        kept = Config.of("gone", dict(kept.knobs))
    lab.recorder.stored = stored(kept)
    best = lab.tune(max_trials=10)
    assert best is not None
    assert best.config != kept
    assert all(str(kept) not in race for race in lab.bench.races)


def interference_in(lab: Lab, races: Sequence[int]) -> None:
    """Others keep a core busy during those races of a lab, counted from 1."""
    alone = lab.bench.race

    def race(*given: Any, **options: Any) -> RaceSamples:
        samples = alone(*given, **options)
        there = len(lab.bench.races) in races
        return dataclasses.replace(samples, interference=("others kept 0.90 cores busy",) if there else ())

    lab.bench.race = race  # type: ignore[method-assign]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("race", ["the final", "the head-to-head"])
def test_a_race_with_interference_runs_again(race: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_PAUSE_S", 0.0)
    lab = Lab()
    interference_in(lab, [1] if race == "the final" else [2])
    best = lab.tune(max_trials=60, seed=2, quiet_wait_s=60.0)
    assert best is not None
    assert [len(candidates) > 1 for candidates in lab.bench.races] == [True, False] * 2
    assert (best.timing.disturbed, best.verdict) == ("", "kernel")


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("race", ["the final", "the head-to-head"])
def test_a_race_that_is_never_alone_settles_nothing(race: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_PAUSE_S", 0.01)
    lab = Lab()
    interference_in(lab, range(1, 10**6, 2) if race == "the final" else range(2, 10**6, 2))
    best = lab.tune(max_trials=60, seed=2, quiet_wait_s=0.05)
    assert best is not None
    assert len(lab.bench.races) > 2
    assert best.timing.disturbed == f"others kept 0.90 cores busy during {race}"
    assert (best.verdict, best.use_vendor) == ("disturbed", True)
    assert lab.recorder.best == best


def test_a_job_that_waits_for_a_quiet_device_can_be_cancelled() -> None:
    lab = Lab()
    interference_in(lab, range(10**6))
    lab.bench.on_race = lambda _artifacts: lab.cancelled.set() if len(lab.bench.races) == 4 else None
    assert lab.tune(max_trials=60, seed=2, quiet_wait_s=3600.0) is None
    assert lab.recorder.best is None


def test_a_winner_that_another_job_stored_meanwhile_is_raced_before_it_is_replaced() -> None:
    """Its device stores it during the final."""
    lab, kept = Lab(), stored(fastest_config())
    lab.bench.on_race = lambda _artifacts: setattr(lab.recorder, "stored", kept)
    best = lab.tune(max_trials=1)
    assert best is not None
    assert (best.config, lab.recorder.best) == (kept.config, best)
    first, final, head_to_head = lab.bench.races
    assert str(kept.config) not in first
    assert str(kept.config) in final
    assert head_to_head == (str(kept.config),)


def test_a_job_whose_stored_winner_changes_in_each_race_ends() -> None:
    lab = Lab()
    each = itertools.cycle([stored(config) for config in every_config()[:2]])
    lab.bench.on_race = lambda _artifacts: setattr(lab.recorder, "stored", next(each))
    best = lab.tune(max_trials=1)
    assert best is not None
    assert lab.recorder.best == best
    assert len(lab.bench.races) <= 2 * selection.SELECTIONS
