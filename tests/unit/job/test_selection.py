"""Who gets into the final, who wins it, and how the winner's lead is stated."""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from toy_family import DEVICE, PROBLEM, TOY, ToyKnobs, toy_artifact
from tune_lab import VENDOR_US, Lab, LabRecorder, config_of

from kernels.base.family import Rule
from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.job import QUICK_TRIALS, Level, TuneRequest
from tilewright.schema.trial import QUICK_METHOD, Outcome, Timing, Trial, VendorSamples
from tuner.job.progress import ProgressTracker
from tuner.job.selection import (
    Candidate,
    FinalResult,
    Stage,
    _vendor_samples,
    final_result,
    interference,
)
from tuner.job.shortlist import loads_at_the_limit, shortlist
from tuner.measure.interleave import MOST_IN_A_RACE
from tuner.measure.race import (
    BURSTS_TOO_HIGH,
    BURSTS_TOO_LOW,
    METHOD,
    METHOD_IN_BURSTS,
    RaceRules,
    RaceSamples,
)
from tuner.measure.stats import PERIODS_MISLEAD
from tuner.measure.timing import FEWEST_OF_QUICK, FEWEST_SAMPLES
from tuner.workers.process import WorkerDied

CONFIGS = [
    TOY.make(16, stages, split=split, vector=vector)
    for vector in (1, 2)
    for stages in (1, 2, 3, 4, 5)
    for split in (1, 2, 4, 8)
]


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def trial(number: int, us: float, outcome: Outcome = Outcome.OK, kernel: str | None = None) -> Trial:
    timing = Timing((us,), us, us, us, "test")
    return Trial(
        number, CONFIGS[number], outcome=outcome, timing=timing, artifact=kernel or f"kernel {number}"
    )


def candidate(number: int, registers: int = 32, smem: int = 1024) -> Candidate:
    return Candidate(trial(number, 100.0), toy_artifact(CONFIGS[number], registers, smem))


def test_the_shortlist_holds_what_is_within_10_percent() -> None:
    trials = [trial(0, 110.1), trial(1, 100.0), trial(2, 109.9), trial(3, 90.0, Outcome.PRUNED)]
    failed = Trial(4, CONFIGS[4], outcome=Outcome.TIMEOUT)
    assert [one.number for one in shortlist([*trials, failed])] == [1, 2]
    assert shortlist([failed]) == []


def test_the_shortlist_holds_at_most_3_and_each_kernel_once() -> None:
    twins = [trial(0, 100.5, kernel="same"), trial(1, 100.0, kernel="same")]
    rest = [trial(number, 101.0 + number / 10) for number in range(2, 40)]
    assert [one.number for one in shortlist([*twins, *rest])] == [1, 2, 3]


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ((100, 90, 90, 80, 70, 10), [0, 4]),  # 5 is more than 3 % behind
        ((100, 90, 70, 80, 70, 10), [0, 2]),  # of those that load as few the faster one
        ((100, 100, 120, 90, 100, 10), [0, 3]),
        ((100, 100, 120, 91, 100, 10), [0, 1]),  # not a tenth less
    ],
)
def test_where_power_limits_the_final_has_the_fastest_and_the_most_sparing(loads, chosen) -> None:
    times = (100.0, 100.1, 101.0, 102.0, 102.9, 103.1)
    trials = [trial(number, us) for number, us in enumerate(times)]
    found = shortlist([*reversed(trials)], lambda one: loads[one.number])
    assert [one.number for one in found] == chosen
    assert shortlist(trials[:1], lambda one: loads[one.number]) == trials[:1]


def test_a_family_that_is_gone_loads_no_less_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.job.shortlist.power_may_limit", lambda _problem, _device: True)
    gone = [dataclasses.replace(trial(i, 100.0 + i), config=Config.of("gone", {"i": i})) for i in range(3)]
    loads = loads_at_the_limit(PROBLEM, DEVICE)
    assert [one.number for one in shortlist(gone, loads)] == [0, 1]
    assert [one.number for one in shortlist([gone[0], gone[1], trial(5, 102.0)], loads)] == [0, 5]


@pytest.mark.parametrize("limits", [True, False])
def test_a_final_has_fewer_candidates_where_power_may_limit_them(limits, monkeypatch) -> None:
    monkeypatch.setattr("tuner.job.shortlist.power_may_limit", lambda _problem, _device: limits)
    lab = crowded_lab()
    assert lab.tune(max_trials=60) is not None
    final, _ = lab.bench.races
    # A larger tile loads fewer bytes of the same problem.
    loads = (lambda one: -TOY.knob_values(one.config).tile) if limits else None
    assert list(final) == [str(one.config) for one in shortlist(lab.recorder.kept, loads)]
    assert len(final) == (2 if limits else 3)


def test_times_of_different_methods_are_not_compared() -> None:
    old = [trial(number, 150.0 + number) for number in range(6)]
    new = [
        dataclasses.replace(one, timing=dataclasses.replace(one.timing, method="new"))
        for one in (trial(number, 90.0 + number / 10) for number in range(6, 12))
        if one.timing
    ]
    assert [one.number for one in shortlist([*old, *new])] == [6, 7, 8, 0, 1, 2]


def test_rounds_pinned() -> None:
    stage = Stage(RaceRules(32, 0), fewest=10)
    assert stage.rounds(0.1) == 32  # 3.2 s
    assert stage.rounds(1.0) == 20  # 20 s
    assert stage.rounds(60.0) == 10  # at least
    assert stage.rounds(0.0) == 32


def rows(*medians: float) -> list[list[float]]:
    """Ten rounds around each median, all rows disturbed alike."""
    return [[us * (1 + 0.001 * step) for step in range(-5, 5)] for us in medians]


def test_the_clearly_fastest_wins_alone() -> None:
    won = final_result([candidate(0), candidate(1), candidate(2)], rows(101.0, 100.0, 102.0))
    assert (won.winner.config, won.ties) == (CONFIGS[1], ())


@pytest.mark.parametrize(
    ("candidates", "winner"),
    [
        ([candidate(0, smem=2048), candidate(1, registers=64), candidate(2, registers=40)], 2),
        ([candidate(0, smem=1024), candidate(1, smem=512, registers=200), candidate(2)], 1),
        ([candidate(2), candidate(1), candidate(0)], 0),
    ],
    ids=["registers", "shared memory first", "the text last"],
)
def test_ties_go_to_the_one_that_costs_least(candidates: list[Candidate], winner: int) -> None:
    won = final_result(candidates, rows(100.0, 100.0, 100.0))
    assert won.winner.config == CONFIGS[winner]
    assert set(won.ties) == {one.config for one in candidates} - {CONFIGS[winner]}


def test_who_was_dropped_neither_wins_nor_ties() -> None:
    three = rows(100.0, 100.0, 100.0)
    won = final_result([candidate(0), candidate(1), candidate(2)], [three[0][:4], *three[1:]], candidate(0))
    assert {won.winner.config, *won.ties} == {CONFIGS[1], CONFIGS[2]}
    early = final_result([candidate(0), candidate(1)], [three[0][:3], three[1][:2]], candidate(1))
    assert (early.winner.config, early.ties) == (CONFIGS[0], ())


def test_a_sample_of_each_decides_where_power_limits_the_device() -> None:
    """Those within 0.3 % are equals, those that lie within what such samples may differ, 1.6 %, are ties."""
    dear, cheap, late = candidate(0, registers=200), candidate(1, registers=32), candidate(2, registers=16)
    means = [[100.0], [100.2], [101.5], [101.7]]
    won = final_result([dear, cheap, late, candidate(3)], means, periods=True)
    assert (won.winner, set(won.ties)) == (cheap, {CONFIGS[0], CONFIGS[2]})
    assert final_result([dear, cheap], [[100.0], [100.4]], periods=True).winner == dear
    assert final_result([dear, cheap], [[100.2], [100.0]], dear, periods=True).winner == dear


@pytest.mark.usefixtures("wide")
def test_a_final_in_whole_periods_has_the_ties_of_such_means(monkeypatch) -> None:
    lab = Lab()
    raced = lab.bench.race

    def whole_periods(*given: Any) -> RaceSamples:
        found = raced(*given)
        means = [(100.0 + 2.0 * place,) for place in range(len(found.samples_us))]  # 2 % apart
        return dataclasses.replace(found, samples_us=tuple(means), periods=True)

    monkeypatch.setattr(lab.bench, "race", whole_periods)
    best = lab.tune(max_trials=60, seed=2)
    assert best
    assert len(lab.bench.races[0]) > 1
    assert best.ties == ()


def test_the_stored_winner_stays_among_equals() -> None:
    dear, cheap = candidate(0, registers=200), candidate(1, registers=32)
    assert final_result([dear, cheap], rows(100.0, 100.0)).winner == cheap
    assert final_result([dear, cheap], rows(100.0, 100.0), dear).winner == dear
    assert final_result([dear, cheap], rows(101.0, 100.0), dear).winner == cheap


@pytest.mark.parametrize(("ratio", "steady"), [(1.2, True), (1 / 1.2, True), (1.3, False), (1 / 1.3, False)])
def test_a_vendor_library_that_changes_its_pace_disturbs(ratio: float, steady: bool) -> None:
    final = RaceSamples(("kernel", "vendor"), ((90.0,) * 16, (100.0,) * 16), "numpy", {}, None, None, "test")
    won = FinalResult(candidate(0), (), final)
    rows = ((90.0,) * 16, (100.0 * ratio,) * 16)
    samples = dataclasses.replace(final, samples_us=rows)
    told = [] if steady else [f"numpy took {ratio:.2f} times as long as in the final"]
    assert interference(won, samples) == told
    assert interference(dataclasses.replace(won, race=None), samples) == []


def test_a_noisy_race_crowns_no_slow_kernel_for_being_small() -> None:
    small, fast = candidate(0, smem=0), candidate(1)
    # 8 of 10 rounds 30 % slower, 2 faster: at 0.99 ten rounds allow none to differ, so they tie.
    slow_row = [130.0] * 8 + [90.0] * 2
    won = final_result([small, fast], [slow_row, [100.0] * 10])
    assert (won.winner, won.ties) == (fast, (small.config,))


def test_dynamic_shared_memory_counts() -> None:
    big = toy_artifact(CONFIGS[0], smem=0)
    resources = dataclasses.replace(big.resources, dynamic_smem=4096)
    big = dataclasses.replace(big, resources=resources)
    won = final_result([Candidate(trial(0, 100.0), big), candidate(1)], rows(100.0, 100.0))
    assert won.winner.config == CONFIGS[1]


@pytest.mark.usefixtures("wide")
def test_the_lead_comes_from_a_second_race_of_two() -> None:
    lab = Lab()
    best = lab.tune(max_trials=60, seed=2)
    assert best is not None
    qualifying, head_to_head = lab.bench.races
    assert len(qualifying) > 1
    assert head_to_head == (str(best.config),)
    assert lab.bench.race_seeds[0] != lab.bench.race_seeds[1]
    assert lab.bench.race_vendors == [True, True]
    assert (best.baseline.name, best.baseline.detail) == ("lab blas", {"tile": 8})
    assert best.speedup == pytest.approx(VENDOR_US / TOY.cost(best.config), rel=0.01)
    assert best.speedup_low < best.speedup < best.speedup_high
    assert best.timing.low_us < best.timing.median_us < best.timing.high_us
    assert (len(best.timing.samples_us), best.timing.method) == (32, "lab race")
    assert (best.timing.mhz, best.timing.watts, best.confidence) == (1500.0, 300.0, 0.99)
    assert best.artifact == lab.builder.artifact(best.config).digest
    assert (best.job_id, best.provenance.method) == ("job-1", "lab race")


def test_a_quick_job_races_its_fastest_trial_alone() -> None:
    lab = Lab()
    best = lab.tune(max_trials=60, level=Level.QUICK)
    assert best is not None
    assert len(lab.recorder.kept) == QUICK_TRIALS
    assert lab.bench.races == [(str(shortlist(lab.recorder.kept)[0].config),)]
    assert lab.bench.race_vendors == [True]
    full = Lab()
    full.tune(max_trials=3)
    assert (lab.bench.fewest, full.bench.fewest) == ({FEWEST_OF_QUICK}, {FEWEST_SAMPLES})
    few = Lab()
    assert few.tune(max_trials=3, level=Level.QUICK) is not None
    assert len(few.recorder.kept) == 3


@pytest.mark.parametrize(
    ("method", "down", "up"), [(METHOD_IN_BURSTS, BURSTS_TOO_HIGH, BURSTS_TOO_LOW), (METHOD, 1.0, 1.0)]
)
def test_the_interval_of_a_race_in_bursts_is_wider(method, down, up, monkeypatch) -> None:
    lab = Lab()
    raced = lab.bench.race
    monkeypatch.setattr(
        lab.bench, "race", lambda *given: dataclasses.replace(raced(*given), method=method + QUICK_METHOD)
    )
    best, plain = lab.tune(max_trials=4, level=Level.QUICK), Lab().tune(max_trials=4, level=Level.QUICK)
    assert best
    assert plain
    assert best.provenance.quick
    assert (best.speedup_low, best.speedup_high) == (plain.speedup_low / down, plain.speedup_high * up)


def test_means_of_whole_periods_give_the_figures_of_a_winner(monkeypatch) -> None:
    lab = Lab()
    raced = lab.bench.race

    def whole_periods(*given: Any) -> RaceSamples:
        found = raced(*given)
        us = [(100.0 + place,) for place in range(len(found.samples_us) - 1)]
        return dataclasses.replace(found, samples_us=(*us, (103.0,)), periods=True)

    monkeypatch.setattr(lab.bench, "race", whole_periods)
    best = lab.tune(max_trials=4)
    assert best
    assert best.timing.samples_us == (best.timing.median_us,) == (100.0,)
    assert (best.speedup, best.verdict) == (1.03, "kernel")
    off = PERIODS_MISLEAD
    assert (best.speedup_low, best.speedup_high) == (1.03 / off, 1.03 * off)
    assert (best.timing.low_us, best.timing.high_us) == (100.0 / off, 100.0 * off)


@pytest.mark.usefixtures("wide")
def test_a_quick_job_goes_on_with_the_next_kernel_where_its_fastest_breaks_the_race() -> None:
    lab = Lab()

    def crash(_artifacts: object) -> None:
        if len(lab.bench.races) == 1:
            raise WorkerDied("crashed in the race", "SIGSEGV")

    lab.bench.on_race = crash
    best = lab.tune(max_trials=60, level=Level.QUICK)
    assert best is not None
    ranked = [(str(one.config),) for one in shortlist(lab.recorder.kept)]
    assert lab.bench.races == ranked[:2]
    assert (str(best.config),) == ranked[1]


def crowded_lab(known: list[Trial] | None = None) -> Lab:
    """A job whose configs lie within 3 % in the search; under load they lie apart, in reverse order."""

    def search_us(text: str) -> float:
        return 100.0 + zlib.crc32(text.encode()) % 1000 / 400

    lab = Lab(known or [])
    lab.bench.cost, lab.bench.under_load = search_us, lambda text: 1200.0 - 10.0 * search_us(text)
    return lab


def test_a_final_under_load_decides_who_wins() -> None:
    lab = crowded_lab()
    best = lab.tune(max_trials=60)
    final, head_to_head = lab.bench.races
    ranked = [str(one.config) for one in shortlist(lab.recorder.kept)]
    assert list(final) == ranked
    assert len(ranked) == MOST_IN_A_RACE
    assert best is not None
    assert str(best.config) != ranked[0], "the fastest of the search is the slowest under load"
    assert head_to_head == (str(best.config),)
    assert lab.bench.race_vendors == [True, True]
    assert len(set(lab.bench.race_seeds)) == 2


def test_a_job_killed_in_the_final_races_again_and_ends_the_same() -> None:
    whole = crowded_lab()
    best = whole.tune(max_trials=60)
    resumed = crowded_lab(whole.recorder.kept)
    assert resumed.tune(max_trials=60) == best
    assert resumed.bench.tried == []
    assert resumed.bench.races == whole.bench.races


@pytest.mark.parametrize("races", [1, 2])
def test_a_job_cancelled_between_races_runs_no_more_of_them(races: int) -> None:
    lab = crowded_lab()

    def cancel(_artifacts: object) -> None:
        if len(lab.bench.races) == races:
            lab.cancelled.set()

    lab.bench.on_race = cancel
    assert lab.tune(max_trials=60) is None
    assert len(lab.bench.races) == races
    assert lab.recorder.best is None


def test_who_breaks_a_crowded_final_is_left_out() -> None:
    lab = crowded_lab()
    broken: list[str] = []

    def crash(artifacts: list[Artifact]) -> None:
        texts = [artifact.binary.decode() for artifact in artifacts]
        broken.extend(texts[-1:] if not broken else [])  # the fastest under load
        if broken[0] in texts:
            raise WorkerDied("crashed in the race", "SIGSEGV")

    lab.bench.on_race = crash  # type: ignore[assignment]
    lab.bench.on_trial = lambda text: Outcome.LAUNCH_ERROR if text in broken else Outcome.OK
    assert lab.tune(max_trials=60) is not None
    assert [len(candidates) for candidates in lab.bench.races] == [3, 2, 1]
    assert not any(broken[0] in candidates for candidates in lab.bench.races[1:])


def test_a_lone_candidate_races_the_vendor_only() -> None:
    lab = Lab()
    lab.bench.cost = lambda text: 100.0 if "tile=32" in text and "stages=2" in text else 900.0
    lab.tune(max_trials=1)
    assert len(lab.bench.races) == 1


@pytest.mark.usefixtures("wide")
def test_a_candidate_that_breaks_the_race_is_left_out() -> None:
    lab = Lab()
    broken: list[str] = []

    def crash(artifacts: list[Artifact]) -> None:
        texts = [artifact.binary.decode() for artifact in artifacts]
        broken.extend(texts[:1] if not broken else [])
        if broken[0] in texts:
            raise WorkerDied("crashed in the race", "SIGSEGV")

    lab.bench.on_race = crash  # type: ignore[assignment]
    lab.bench.on_trial = lambda text: Outcome.LAUNCH_ERROR if text in broken else Outcome.OK
    best = lab.tune(max_trials=60, seed=2)
    assert best is not None
    assert str(best.config) not in broken
    assert str(best.config) in lab.bench.races[1]


def test_a_race_that_breaks_without_a_culprit_is_an_error() -> None:
    lab = Lab()

    def crash(_artifacts: object) -> None:
        raise WorkerDied("crashed in the race", "SIGSEGV")

    lab.bench.on_race = crash
    with pytest.raises(WorkerDied):
        lab.tune(max_trials=60, seed=2)
    assert len(lab.recorder.kept) == 60


def upgraded(whole: Lab, cost: Callable[[Config], float] = TOY.cost) -> Lab:
    """The rest of a job after an upgrade: each config builds to another kernel, which costs ``cost``."""
    lab = Lab(whole.recorder.kept)
    lab.builder.registers = {trial.config: 99 for trial in whole.recorder.kept}
    lab.bench.cost = lambda text: cost(config_of(text))
    return lab


def test_kernels_that_changed_meanwhile_are_checked_and_measured_again() -> None:
    whole = Lab()
    whole.tune(max_trials=10)
    chosen = [trial.config for trial in shortlist(whole.recorder.kept)]
    resumed = upgraded(whole)
    best = resumed.tune(max_trials=10)
    assert best is not None
    assert best.artifact == toy_artifact(best.config, registers=99).digest
    assert best.config in chosen
    assert resumed.bench.tried == [str(config) for config in chosen]
    assert resumed.recorder.kept == whole.recorder.kept


def test_a_changed_kernel_that_is_wrong_now_gives_way_to_the_next_fastest() -> None:
    whole = Lab()
    whole.tune(max_trials=30)
    chosen = {str(trial.config) for trial in shortlist(whole.recorder.kept)}
    resumed = upgraded(whole)
    resumed.bench.on_trial = lambda text: Outcome.WRONG_RESULT if text in chosen else Outcome.OK
    best = resumed.tune(max_trials=30)
    assert best is not None
    assert str(best.config) not in chosen
    rest = [trial for trial in whole.recorder.kept if str(trial.config) not in chosen]
    assert best.config in [trial.config for trial in shortlist(rest)]


def test_a_job_none_of_whose_changed_kernels_works_names_no_winner() -> None:
    whole = Lab()
    whole.tune(max_trials=10)
    resumed = upgraded(whole)
    resumed.bench.on_trial = lambda _text: Outcome.WRONG_RESULT
    assert resumed.tune(max_trials=10) is None
    measured = {str(trial.config) for trial in whole.recorder.kept if trial.outcome is Outcome.OK}
    assert set(resumed.bench.tried) == measured


@pytest.mark.parametrize("change", ["a family that went", "a rule that came"])
def test_trials_that_are_invalid_since_an_upgrade_are_replaced_by_new_ones(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Lab()
    whole.tune(max_trials=10)
    old = whole.recorder.kept
    if change == "a family that went":
        old = [dataclasses.replace(one, config=Config.of("gone", dict(one.config.knobs))) for one in old]
    else:
        tried = {one.config for one in old}
        rule = Rule(tuple(knob.name for knob in TOY.knobs), lambda knobs, *_: told(knobs))
        monkeypatch.setattr(TOY, "rules", (*TOY.rules, rule))

    def told(knobs: ToyKnobs) -> str | None:
        return "it is not valid any more" if TOY.config(knobs) in tried else None

    resumed = Lab(old)
    best = resumed.tune(max_trials=10)
    assert best is not None
    fresh = resumed.recorder.kept[len(old) :]
    assert [one.number for one in resumed.recorder.kept] == list(range(20))
    assert best.config in [one.config for one in fresh if one.outcome is Outcome.OK]
    assert (resumed.recorder.progress[-1].measured, resumed.recorder.progress[-1].failed) == (10, 10)


@pytest.mark.parametrize("age", ["with a knob that went", "without one that came later"])
def test_a_candidate_from_before_a_change_of_knobs_is_built_by_those_of_today(age: str) -> None:
    whole = crowded_lab()
    best = whole.tune(max_trials=10)
    assert best is not None

    def stored(trial: Trial) -> Trial:
        knobs = dict(trial.config.knobs)
        if age == "with a knob that went":
            knobs["lockstep"] = 1
        elif knobs["vector"] == 1:
            del knobs["vector"]
        return dataclasses.replace(trial, config=Config.of("toy", knobs))

    kept = [stored(trial) for trial in whole.recorder.kept]
    assert any(TOY.why_invalid(trial.config, PROBLEM, DEVICE) for trial in shortlist(kept))
    resumed = crowded_lab(kept)
    again = resumed.tune(max_trials=10)
    assert again is not None
    assert resumed.bench.tried == []
    assert again.artifact == best.artifact
    assert resumed.builder.submitted == [TOY.completed(trial.config) for trial in shortlist(kept)]
    assert all(TOY.why_invalid(one, PROBLEM, DEVICE) is None for one in resumed.builder.submitted)


def test_a_job_that_another_release_began_is_not_pruned_by_its_times() -> None:
    """Times of another method may be shorter by more than a trial may be slower."""

    def by_today(one: Trial) -> Trial:
        assert one.timing is not None
        return dataclasses.replace(one, timing=dataclasses.replace(one.timing, method="today"))

    nothing: Any = None
    tracker = ProgressTracker(TuneRequest(PROBLEM), LabRecorder(), nothing, 0.0)
    for number, us in enumerate((2.0, 2.1)):
        tracker.replay(trial(number, us))
    assert tracker.incumbent_us == 2.0
    tracker.add(by_today(trial(2, 2.6, Outcome.PRUNED)), None)
    assert tracker.incumbent_us is None, "those before do not compare, and it did not run to the end"
    tracker.add(by_today(trial(3, 2.5)), None)
    assert (tracker.incumbent_us, [one.number for one in tracker.comparable]) == (2.5, [2, 3])


def test_the_samples_of_the_vendor_library_stay_with_the_winner() -> None:
    final = RaceSamples(("a", "b", "vendor"), ((9.0,), (8.0,), (7.0,)), "numpy", {}, 1500.0, 80.0, "test")
    pair = RaceSamples(("b", "vendor"), ((8.5,), (7.5,)), "numpy", {}, 1600.0, 90.0, "test")
    kept = _vendor_samples(FinalResult(candidate(1), (), final, 1), pair)
    assert kept == VendorSamples((7.5,), (7.0,), (8.0,), 1500.0, 80.0)
    assert _vendor_samples(FinalResult(candidate(1), ()), pair) == VendorSamples((7.5,))
