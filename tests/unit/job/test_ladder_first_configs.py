"""First configs of rows of a ladder: which families, how many, and that every row finds its planted best."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from device_samples import HOPPER
from sweeps import every
from toy_family import DEVICE, PROBLEM, ToyFamily
from tune_lab import Lab, config_of

from kernels.prior import prior
from kernels.registry import FAMILIES, families_for
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import Level, TuneRequest
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Trial
from tuner.job.first_configs import COUNTS, Measured, first_configs, promising
from tuner.job.progress import FROM_LADDER
from tuner.store.database import JobTaken

ROWS = tuple(2**power for power in range(1, 14))
LARGE = GemmProblem(8192, 6144, 4096, DType.BFLOAT16)


def tile_for(m: int) -> int:
    """The tile that is best in a class of M."""
    return 16 if m <= 16 else 64 if m <= 256 else 128


def heuristics_are_best(text: str, m: int) -> float:
    """Tiles of another class take twice as long; others than heuristic configs take 1.5 times as long."""
    config = config_of(text)
    us = 100.0 * (1.0 if int(str(config["tile"])) == tile_for(m) else 2.0)
    return us * (1.0 if (config["stages"], config["order"]) == (2, "rows") else 1.5)


class PlantedToy(ToyFamily):
    """A toy whose heuristic configs have the best tile of a class of M."""

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        del device
        return [self.make(tile_for(problem.m), 2, split=split) for split in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("level", "max_trials"),
    every(2, [(Level.FULL, 16), (Level.FULL, 100), (Level.QUICK, 16), (Level.QUICK, 4)]),
)
def test_every_row_finds_the_best_of_its_class(
    monkeypatch: pytest.MonkeyPatch, level: Level, max_trials: int
) -> None:
    monkeypatch.setitem(FAMILIES, "toy", PlantedToy())
    lab = Lab()
    lab.bench.cost = lambda _text: 1.0
    lab.bench.on_row = heuristics_are_best
    lab.bench.vendor_us = 1e4
    request = TuneRequest(
        dataclasses.replace(PROBLEM, m=ROWS[-1]), ROWS, families=("toy",), max_trials=max_trials, level=level
    )
    found = lab.run(request)
    assert [int(str(best.config["tile"])) for best in found] == list(map(tile_for, ROWS))
    assert {best.timing.median_us < 130 for best in found} == {True}
    own = Counter(trial.m for trial in lab.recorder.kept if trial.origin != FROM_LADDER)
    quarter = round(max_trials / 4)
    assert all(own[m] <= max(quarter, COUNTS[level].most) for m in ROWS[:-1])
    assert own[ROWS[-1]] == min(max_trials, COUNTS[level].most if level is Level.QUICK else max_trials)


def measured(m: int, behind: dict[str, float]) -> Measured:
    """A row on which the first heuristic config of each family took so many times the best."""
    problem = dataclasses.replace(LARGE, m=m)
    return Measured(
        m, {FAMILIES[name].heuristic_configs(problem, HOPPER)[0]: 10.0 * by for name, by in behind.items()}
    )


def firsts(m: int, level: Level, done: list[Measured]) -> list[Config]:
    return first_configs(TuneRequest(dataclasses.replace(LARGE, m=m), level=level), HOPPER, done)


@pytest.mark.parametrize("level", list(Level))
def test_a_family_that_may_win_has_more_configs_than_one_that_is_behind(level: Level) -> None:
    row = measured(2048, {"wgmma_ws": 1.0, "wgmma": 1.3, "mma_sync": 2.0, "wmma": 3.0, "simt": 9.0})
    found = Counter(config.family for config in firsts(1024, level, [row]))
    own = FAMILIES["wgmma_ws"].heuristic_configs(dataclasses.replace(LARGE, m=1024), HOPPER)
    assert set(own[: COUNTS[level].close]) <= set(firsts(1024, level, [row]))
    assert set(found) == {"wgmma_ws", "wgmma"}
    assert found["wgmma"] <= COUNTS[level].other + 1 < found["wgmma_ws"]


@pytest.mark.parametrize("level", list(Level))
def test_families_that_begin_to_compute_a_row_are_tried_there(level: Level) -> None:
    row = measured(32, {"wgmma_ws": 1.0, "mma_sync": 1.1})
    small = dataclasses.replace(LARGE, m=16)
    begin = set(families_for(small, HOPPER)) - set(families_for(dataclasses.replace(small, m=32), HOPPER))
    assert begin == {"gemv", "gemv_tma"}
    found = Counter(config.family for config in firsts(16, level, [row]))
    assert begin <= set(found)
    assert found["wmma"] <= COUNTS[level].other < found["gemv_tma"] + 1, "one seldom wins, the other often"


def test_a_family_that_was_far_behind_is_tried_again_two_octaves_on() -> None:
    row = measured(8192, {"wgmma_ws": 1.0, "wgmma": 2.0})
    other = measured(4096, {"wgmma_ws": 1.0})
    assert "wgmma" not in {config.family for config in firsts(4096, Level.FULL, [row])}
    found = Counter(config.family for config in firsts(2048, Level.FULL, [row, other]))
    assert found["wgmma"] == 1


@pytest.mark.parametrize("level", list(Level))
def test_a_hopeless_family_needs_a_row_where_it_was_not_far_behind(level: Level) -> None:
    problem = dataclasses.replace(LARGE, m=1024)
    assert {name for name, chance in prior(problem, HOPPER).items() if not chance} == {
        "simt",
        "mma_sync",
        "wmma",
    }
    ahead = {"wgmma_ws": 1.0}
    for shown, tried in ({}, 0), ({"mma_sync": 2.0}, 0), ({"mma_sync": 1.3}, COUNTS[level].other):
        rows = [measured(8192, ahead | shown), measured(4096, ahead), measured(2048, ahead)]
        found = Counter(config.family for config in firsts(1024, level, rows))
        assert found["mma_sync"] == tried
    wanted = TuneRequest(problem, families=("mma_sync",), level=level)
    assert first_configs(wanted, HOPPER, [measured(2048, ahead)]), "a family that was asked for is tried"


def test_rows_of_one_class_share_what_was_measured() -> None:
    family = FAMILIES["wgmma_ws"]
    one, two = (family.heuristic_configs(dataclasses.replace(LARGE, m=m), HOPPER) for m in (3, 4))
    assert one[:9] == two[:9]
    # The first three took 1.3 times the best of the row: the next ones of the family take their place.
    others = ("wgmma", "mma_sync", "wmma", "gemv_tma", "gemv", "simt")
    row = measured(4, dict.fromkeys(others, 3.0))
    row = Measured(4, {**row.us, **dict.fromkeys(two[:3], 13.0), two[3]: 10.0})
    found = [config for config in firsts(3, Level.FULL, [row]) if config.family == "wgmma_ws"]
    assert found[0] == two[3]
    assert set(two[4:9]) <= set(found)
    assert not set(two[1:3]) & set(found)


def test_winners_of_an_earlier_release_are_tried_in_words_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = dataclasses.replace(LARGE, m=1)
    today = FAMILIES["gemv_tma"].heuristic_configs(decode, HOPPER)[0]
    one, four = (Config.of("gemv_tma", dict(today.knobs) | {"split_k": splits}) for splits in (1, 4))
    assert today in first_configs(TuneRequest(decode), HOPPER, [], [one])
    assert not {one, four} & set(first_configs(TuneRequest(decode), HOPPER, [], [one, four]))

    monkeypatch.setitem(FAMILIES, "toy", PlantedToy())
    lab = Lab()
    rows = ROWS[-3:]
    request = TuneRequest(dataclasses.replace(PROBLEM, m=rows[-1]), rows, families=("toy",), max_trials=16)
    stored = Config.of("toy", dict(PlantedToy().make(16, 2).knobs) | {"removed": 1})
    assert len(lab.run(request, lambda _: [stored])) == len(rows)


def test_the_page_on_searches_says_how_many_first_configs_a_row_has() -> None:
    page = (Path(__file__).parents[3] / "docs" / "search.md").read_text()
    assert f"at most {COUNTS[Level.FULL].most} (`quick`: {COUNTS[Level.QUICK].most})" in page


def test_a_row_is_compiled_while_the_row_above_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", PlantedToy())
    lab = Lab(spec=dataclasses.replace(DEVICE, kind="cuda"))
    events = list[tuple[str, int, Config]]()
    lab.bench.on_row, lab.bench.vendor_us = heuristics_are_best, 1e4
    submit, trial = lab.builder.submit, lab.bench.trial

    def noted_submit(family_name: str, config: Config, problem: GemmProblem, device: DeviceSpec) -> Any:
        events.append(("compile", problem.m, config))
        return submit(family_name, config, problem, device)

    def noted_trial(artifact: Any, problem: GemmProblem, *given: Any) -> Any:
        ends = time.monotonic() + 10.0
        while problem.m in rows[1:-1] and ("compile", problem.m // 2) not in [
            one[:2] for one in list(events)
        ]:
            assert time.monotonic() < ends, "the next row is listed while this one is measured"
            time.sleep(0.001)
        events.append(("measure", problem.m, config_of(artifact.binary.decode())))
        return trial(artifact, problem, *given)

    lab.builder.submit, lab.bench.trial = noted_submit, noted_trial  # type: ignore[method-assign]
    rows = ROWS[-5:]
    request = TuneRequest(dataclasses.replace(PROBLEM, m=rows[-1]), rows, families=("toy",), max_trials=16)
    lab.run(request)
    for m in rows[:-2]:  # nothing is known yet when the first row is measured
        above = max(place for place, one in enumerate(events) if one[:2] == ("measure", 2 * m))
        tried = [config for kind, row, config in events if (kind, row) == ("measure", m)]
        ahead = {config for kind, row, config in events[:above] if (kind, row) == ("compile", m)}
        compiled = [config for kind, row, config in events if (kind, row) == ("compile", m)]
        used = ahead.intersection(tried[:4])
        assert used
        assert {compiled.count(config) for config in used} == {1}


def test_a_job_that_is_taken_cancels_what_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", PlantedToy())
    lab = Lab(spec=dataclasses.replace(DEVICE, kind="cuda"))
    lab.bench.on_row, lab.bench.vendor_us = heuristics_are_best, 1e4
    *_, next_row, row, first_row = ROWS
    submit = lab.builder.submit

    def slow_for_the_next_row(name: str, config: Config, problem: GemmProblem, device: DeviceSpec) -> Any:
        lab.builder.at_once = problem.m != next_row
        return submit(name, config, problem, device)

    def taken(trial: Trial) -> None:
        if trial.m == row:
            raise JobTaken("by another service")

    lab.builder.submit, lab.recorder.on_trial = slow_for_the_next_row, taken  # type: ignore[method-assign]
    request = TuneRequest(dataclasses.replace(PROBLEM, m=first_row), ROWS, families=("toy",), max_trials=16)
    with pytest.raises(JobTaken):
        lab.run(request)
    assert any(future.cancelled() for future in lab.builder.futures)
    assert all(future.done() for future in lab.builder.futures)


def test_a_row_whose_first_configs_cannot_be_listed_fails_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FAMILIES, "toy", PlantedToy())
    lab = Lab(spec=dataclasses.replace(DEVICE, kind="cuda"))
    lab.bench.on_row, lab.bench.vendor_us = heuristics_are_best, 1e4
    *rows, listed, above, first_row = ROWS
    submit = lab.builder.submit

    def broken_ahead(name: str, config: Config, problem: GemmProblem, device: DeviceSpec) -> Any:
        if problem.m == listed and threading.current_thread() is not threading.main_thread():
            raise InvalidProblem("cannot be listed")
        return submit(name, config, problem, device)

    lab.builder.submit = broken_ahead  # type: ignore[method-assign]
    request = TuneRequest(dataclasses.replace(PROBLEM, m=first_row), ROWS, families=("toy",), max_trials=16)
    found = lab.run(request)
    assert [best.problem.m for best in found] == [*rows, above, first_row]
    assert lab.recorder.errors == {listed: "cannot be listed"}


def test_a_winner_of_many_rows_is_not_promising_for_few_unless_no_model_rates_it() -> None:
    family = FAMILIES["wgmma_ws"]
    large = family.heuristic_configs(LARGE, HOPPER)[0]
    few = dataclasses.replace(LARGE, m=64)
    own = family.heuristic_configs(few, HOPPER)[:2]
    unknown, invalid = Config.of("of another release", {}), dataclasses.replace(large, family="gemv_tma")
    assert family.why_invalid(large, few, HOPPER) is None
    assert promising([large, *own, unknown, invalid], few, HOPPER) == [*own, unknown, invalid]
    assert promising([large, *own], LARGE, HOPPER)[0] == large
    short = GemmProblem(1024, 1024, 512, DType.BFLOAT16)
    ranked = family.heuristic_configs(short, HOPPER)
    assert promising(ranked, short, HOPPER) == ranked


def test_rows_do_not_try_what_the_model_rates_far_slower_on_them() -> None:
    large = FAMILIES["wgmma_ws"].heuristic_configs(LARGE, HOPPER)[0]
    request = TuneRequest(dataclasses.replace(LARGE, m=64), max_trials=16)
    assert large not in first_configs(request, HOPPER, [Measured(8192, {large: 500.0})])


def test_a_winner_that_left_the_heuristic_configs_behind_is_tried_on_the_next_row() -> None:
    family = FAMILIES["wgmma_ws"]
    large, *ranked = (
        config
        for m, most in ((LARGE.m, 1), (64, None), (63, None))
        for config in family.heuristic_configs(dataclasses.replace(LARGE, m=m), HOPPER)[:most]
    )
    beside = Measured(64, {large: 10.0} | dict.fromkeys(ranked, 12.0))
    request = TuneRequest(dataclasses.replace(LARGE, m=63), families=("wgmma_ws",), max_trials=16)
    assert first_configs(request, HOPPER, [beside]) == [large]
