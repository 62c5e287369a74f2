"""A job on a ladder: its rows, what they share, the kernels that cover it, resumption and cancellation."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
import zlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from sweeps import every
from toy_family import PROBLEM, TOY
from tune_lab import Lab, config_of

from kernels.registry import FAMILIES
from tilewright.errors import InvalidProblem
from tilewright.http.arguments import with_rows
from tilewright.schema.job import MOST_ROWS, Level, MRange, TuneRequest, ladder_of, parse_rows, work_of
from tilewright.schema.trial import BestConfig, Outcome, Trial
from tilewright.wire.requests import TuneBody
from tuner.job import ladder as ladder_job
from tuner.job import shortlist
from tuner.job.ladder import COVERED, FOLLOWED, cover, with_ladder
from tuner.job.progress import FROM_LADDER
from tuner.job.selection import NO_WINNER
from tuner.measure.race import RaceSamples
from tuner.workers.process import WorkerDied

ROWS = (16, 32, 64, 128, 256)


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def small_tiles_for_small_m(text: str, m: int) -> float:
    """Below M = 64 each tile larger than 32 takes three times as long, from there on each other one does."""
    tile = int(str(config_of(text)["tile"]))
    return 3.0 if (tile > 32) == (m < 64) else 1.0


def ladder_lab(known: Any = (), rows: Any = None) -> Lab:
    lab = Lab(known)
    lab.recorder.rows = dict(rows or {})
    lab.bench.on_row = small_tiles_for_small_m
    lab.bench.vendor_us = 1e4
    return lab


def run(lab: Lab, ladder: tuple[int, ...] = ROWS, max_trials: int = 40, **options: Any) -> list[BestConfig]:
    problem = dataclasses.replace(PROBLEM, m=ladder[-1])
    request = TuneRequest(problem, ladder, families=("toy",), max_trials=max_trials, **options)
    return lab.run(request)


def test_each_row_has_a_winner_and_few_kernels_cover_them() -> None:
    lab = ladder_lab()
    found = run(lab)
    assert [best.problem.m for best in found] == list(ROWS)
    assert lab.recorder.rows == {best.problem.m: best for best in found}
    assert len({best.artifact for best in found}) == 2
    tiles = [int(str(best.config["tile"])) for best in found]
    assert all((tile <= 32) == (m < 64) for m, tile in zip(ROWS, tiles, strict=True))
    assert all(best.regret <= COVERED + 1e-9 for best in found)


def test_the_largest_row_has_the_trials_and_each_other_one_a_quarter() -> None:
    lab = ladder_lab()
    run(lab)
    kept = lab.recorder.kept
    assert [trial.number for trial in kept] == list(range(len(kept)))
    own = [trial.m for trial in kept if trial.origin != FROM_LADDER]
    assert {m: own.count(m) for m in ROWS} == {256: 40, 128: 10, 64: 10, 32: 10, 16: 10}
    assert own == sorted(own, reverse=True)


def test_a_row_starts_from_the_best_of_its_neighbour() -> None:
    lab = ladder_lab()
    run(lab)
    of_row = {m: [one for one in lab.recorder.kept if one.m == m and one.origin != FROM_LADDER] for m in ROWS}
    complete = [one for one in of_row[256] if one.outcome is Outcome.OK and one.timing]
    best = min(complete, key=lambda one: one.timing.median_us if one.timing else 0.0)
    assert of_row[128][0].config == best.config


def test_winners_of_both_rows_beside_a_gap_were_measured_on_both() -> None:
    found = run(ladder_lab())
    for lower, upper in itertools.pairwise(found):
        for best in (lower, upper):
            known = {one.artifact for one in best.kernels or ()}
            assert {lower.artifact, upper.artifact} <= known


def test_a_kernel_is_not_compiled_again_for_the_next_row() -> None:
    lab = ladder_lab()
    run(lab)
    followed = [trial for trial in lab.recorder.kept if trial.origin == FROM_LADDER]
    assert followed
    assert len(lab.builder.submitted) == len(lab.recorder.kept) - len(followed)


def test_a_winner_says_what_each_kernel_takes_and_is_against_the_vendor() -> None:
    # The winner takes 1.01 of the best of its row, the other kernel 1.10 of it; the winner is 1.2 times as
    # fast as the vendor library, so the other one is 1.2 * 1.01 / 1.10 times as fast.
    lab = Lab()
    plain = lab.tune(max_trials=5)
    assert plain is not None
    best = dataclasses.replace(plain, speedup=1.2)
    other = "f" * 64
    made = with_ladder(best, {best.artifact: 0.01, other: 0.10})
    assert made.regret == 0.01
    kernels = {one.artifact: (one.regret, one.speedup) for one in made.kernels or ()}
    assert kernels == {best.artifact: (0.01, 1.2), other: (0.10, pytest.approx(1.2 * 1.01 / 1.1))}
    assert plain.regret == 0.0


def test_a_kernel_that_lost_the_race_is_not_stated_faster_than_its_winner() -> None:
    plain = Lab().tune(max_trials=5)
    assert plain is not None
    best = dataclasses.replace(plain, speedup=0.98)
    other = "f" * 64
    made = with_ladder(best, {best.artifact: 0.04, other: 0.0})
    assert [one.speedup for one in made.kernels or ()] == [0.98, 0.98]
    # The stored winner of the row, which the search did not measure: nothing is known of the others.
    stored = with_ladder(best, {other: 0.0})
    assert [(one.artifact, one.regret, one.speedup) for one in stored.kernels or ()] == [
        (best.artifact, 0.0, 0.98)
    ]


def test_few_kernels_are_chosen_so_that_each_row_is_covered() -> None:
    regrets = {
        1: {"a": 0.0, "b": 0.004},
        2: {"a": 0.02, "b": 0.0, "c": 0.009},
        4: {"b": 0.01, "c": 0.0},
        8: {"c": 0.05, "d": 0.0},
        16: {},
    }
    assert cover(regrets) == ["b", "d"]
    assert cover({1: {"a": 0.0, "b": 0.002}, 2: {"a": 0.0, "b": 0.002}}) == ["a"]
    assert cover({}) == []


@pytest.mark.parametrize("done", every(3, [17, 1, 45, 80]))
def test_a_resumed_job_measures_nothing_twice_and_ends_the_same(done: int) -> None:
    whole = ladder_lab()
    best = run(whole)
    resumed = ladder_lab(whole.recorder.kept[:done])
    assert run(resumed) == best
    assert resumed.recorder.kept == whole.recorder.kept
    assert resumed.bench.tried == whole.bench.tried[done:]
    counts = [progress.measured for progress in resumed.recorder.progress]
    assert counts == sorted(counts)
    assert counts[0] >= done - 1


def test_rows_whose_race_is_over_are_not_raced_again() -> None:
    whole = ladder_lab()
    best = run(whole)
    kept = {one.problem.m: one for one in best if one.problem.m >= 64}
    resumed = ladder_lab(whole.recorder.kept, kept)
    assert run(resumed) == best
    assert resumed.bench.tried == []
    assert 0 < len(resumed.bench.races) < len(whole.bench.races)


@pytest.mark.parametrize("races", [1, 3])
def test_a_cancelled_job_keeps_the_winners_of_the_rows_that_were_raced(races: int) -> None:
    lab = ladder_lab()

    def stop(_artifacts: Any) -> None:
        if len(lab.recorder.rows) == races:
            lab.cancelled.set()

    lab.bench.on_race = stop
    assert run(lab) == []
    assert sorted(lab.recorder.rows) == sorted(ROWS)[-races:]


def test_a_job_cancelled_in_the_search_keeps_its_trials() -> None:
    lab = ladder_lab()
    lab.recorder.on_trial = lambda trial: lab.cancelled.set() if trial.number == 44 else None
    assert run(lab) == []
    assert len(lab.recorder.kept) == 45
    assert (lab.bench.races, lab.recorder.rows) == ([], {})


def test_progress_is_of_the_whole_job() -> None:
    lab = ladder_lab()
    run(lab)
    steps = lab.recorder.progress
    assert list(dict.fromkeys(step.phase for step in steps)) == ["enumerate", "search", "race", "done"]
    assert [step.rows_done for step in steps] == sorted(step.rows_done for step in steps)
    last = steps[-1]
    assert (last.measured, last.planned, last.failed, last.rows_done) == (len(lab.recorder.kept),) * 2 + (
        0,
        5,
    )
    assert last.compile_s == 40.0  # 80 trials of the searches
    assert {step.m for step in steps} == {None, *ROWS}


def test_a_row_that_no_family_computes_has_no_winner() -> None:
    found = run(ladder_lab(), (15, 16, 64))
    assert [best.problem.m for best in found] == [16, 64]
    with pytest.raises(InvalidProblem, match="odd m"):
        run(ladder_lab(), (15, 17))


def test_the_seconds_of_a_search_are_shared_by_the_rows() -> None:
    lab = ladder_lab()
    run(lab, max_trials=600, max_seconds=1e-9)
    own = [trial.m for trial in lab.recorder.kept if trial.origin != FROM_LADDER]
    assert {m: own.count(m) for m in ROWS} == dict.fromkeys(ROWS, 1)


def test_a_kernel_is_followed_until_it_is_far_behind() -> None:
    lab = ladder_lab()
    run(lab)
    followed = [trial for trial in lab.recorder.kept if trial.origin == FROM_LADDER]
    # Small tiles end between 32 and 64: none of either kind is measured on the far row of the other.
    assert followed
    assert {trial.m for trial in followed if trial.outcome is Outcome.PRUNED} <= {32, 64}
    assert FOLLOWED < 2.0


def by_another(one: Trial) -> Trial:
    """A trial by the method of another release."""
    return dataclasses.replace(one, timing=one.timing and dataclasses.replace(one.timing, method="another"))


def test_a_ladder_that_a_release_with_another_method_searched_keeps_its_winners() -> None:
    """A kernel of another row, measured by today's method, is no reason to forget those of the row."""
    whole = ladder_lab()
    best = run(whole)
    kept = [by_another(trial) for trial in whole.recorder.kept if trial.origin != FROM_LADDER]
    resumed = ladder_lab(kept)
    found = run(resumed)
    assert len(resumed.recorder.kept) > len(kept), "a kernel was measured on another row"
    assert [one.artifact for one in found] == [one.artifact for one in best]
    assert resumed.recorder.errors == {}


@pytest.mark.parametrize("done", [39, 38, 33])
def test_a_row_that_another_release_began_races_the_best_of_both(done: int) -> None:
    """The new trials alone may be slow, or none of them complete."""
    whole = ladder_lab()
    best = run(whole, (128, 256))[-1]
    kept = [by_another(trial) for trial in whole.recorder.kept[:done]]
    assert best.config in [trial.config for trial in kept]
    resumed = ladder_lab(kept)
    found = run(resumed, (128, 256))
    assert (found[-1].problem.m, found[-1].config) == (256, best.config)
    assert resumed.recorder.errors == {}


def test_kernels_are_measured_row_by_row_since_a_device_keeps_the_operands_of_one() -> None:
    order = list[int]()

    def row(m: int) -> Any:
        own = [f"{rank} of {m}" for rank in ("best", "second")]
        tracker = SimpleNamespace(best=own[0])
        return SimpleNamespace(own_best=own, tracker=tracker, follow=lambda _kernel: order.append(m) or 1.0)

    job: Any = SimpleNamespace(context=SimpleNamespace(cancelled=threading.Event()), time_is_up=False)
    ladder_job._follow(job, [row(m) for m in (64, 32, 16)])
    assert order == [64, 64, 32, 32, 32, 32, 16, 16]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("7", [7]),
        ("1..8", [1, 2, 4, 8]),
        ("3..20", [3, 6, 12, 20]),
        ("512..2048+512", [512, 1024, 1536, 2048]),
        ("100..350+100", [100, 200, 300, 350]),
        ("1, 5 ,16..64", [1, 5, 16, 32, 64]),
        ("5..5", [5]),
    ],
)
def test_texts_of_rows(text: str, rows: list[int]) -> None:
    assert parse_rows(text) == rows


@pytest.mark.parametrize("text", ["", "a", "1..", "..8", "1..8*2", "1,,2", "-1", "1.5", "1..8+", "4..1"])
def test_what_is_no_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidProblem, match=r"1\.\.8192"):
        parse_rows(text)


@pytest.mark.parametrize("text", ["0", "0..4", "0..0", "8,0"])
def test_no_row_is_0(text: str) -> None:
    with pytest.raises(InvalidProblem, match="M must be 1 or more, got 0"):
        parse_rows(text)


def test_a_ladder_has_each_row_once_and_64_of_them_at_most() -> None:
    assert ladder_of([8, 1, 8, 4]) == (1, 4, 8)
    assert ladder_of([8, 8]) == ladder_of([]) == ()
    assert len(ladder_of(range(1, MOST_ROWS + 1))) == MOST_ROWS
    with pytest.raises(InvalidProblem, match="at most 64"):
        ladder_of(MRange(1, 2**31 - 1, 1).rows)
    with pytest.raises(InvalidProblem, match="at most 64"):
        ladder_of(parse_rows("1..2000000000+1"))


def test_a_request_has_a_row_for_each_m() -> None:
    problem = dataclasses.replace(PROBLEM, m=64)
    request = TuneRequest(problem, (16, 64))
    assert [one.m for one in request.problems] == [16, 64]
    assert TuneRequest.of(problem, request.options) == request
    assert "ladder" not in TuneRequest(problem).options
    for rows in ((16, 32), (64, 16), (16, 16, 64)):
        with pytest.raises(ValueError, match="ladder: must go up"):
            TuneRequest(problem, rows)


def failing_races(lab: Lab, m: int, error: Exception) -> None:
    """Every race on one row fails."""
    raced = lab.bench.race

    def race(artifacts: Any, problem: Any, *rules: Any) -> Any:
        if problem.m == m:
            raise error
        return raced(artifacts, problem, *rules)

    lab.bench.race = race  # type: ignore[method-assign]


def test_the_failure_of_one_row_is_kept_there_and_the_others_go_on() -> None:
    lab = ladder_lab()
    failing_races(lab, 64, WorkerDied("the process died", "SIGSEGV"))
    assert [best.problem.m for best in run(lab)] == [16, 32, 128, 256]
    assert list(lab.recorder.errors) == [64]
    assert "the process died" in lab.recorder.errors[64]


def test_each_row_without_a_winner_has_the_reason() -> None:
    lab = ladder_lab()
    run(lab, (15, 16, 64))
    assert list(lab.recorder.errors) == [15]
    assert "odd m" in lab.recorder.errors[15]
    lab = ladder_lab()
    lab.bench.on_trial = lambda _text: Outcome.WRONG_RESULT
    assert run(lab) == []
    assert lab.recorder.errors == dict.fromkeys(sorted(ROWS, reverse=True), NO_WINNER)


@pytest.mark.long
def test_a_job_that_ran_out_of_time_does_not_search_its_rows_again() -> None:
    options: Any = {"max_trials": 600, "max_seconds": 1e-9}
    timed_out = ladder_lab()
    best = run(timed_out, **options)
    kept = timed_out.recorder.kept
    assert len(kept) < 10
    decided = {one.problem.m: one for one in best if one.problem.m == 256}
    resumed = ladder_lab(kept, decided)
    assert run(resumed, max_trials=600) == best
    assert resumed.bench.tried == []
    resumed = ladder_lab(kept)  # killed before any race: the last row alone is searched on
    run(resumed, max_trials=600)
    added = [trial.m for trial in resumed.recorder.kept[len(kept) :] if trial.origin != FROM_LADDER]
    assert set(added) <= {min(ROWS)}


def test_a_failed_row_stays_failed_when_its_job_is_resumed() -> None:
    whole = ladder_lab()
    failing_races(whole, 64, WorkerDied("the process died", "SIGSEGV"))
    best = run(whole)
    resumed = ladder_lab(whole.recorder.kept, {one.problem.m: one for one in best})
    resumed.recorder.errors = dict(whole.recorder.errors)
    assert run(resumed) == best
    assert (resumed.bench.tried, resumed.bench.races) == ([], [])


def test_kernels_of_other_rows_are_measured_within_the_budget() -> None:
    rows = tuple(range(16, 16 + 2 * 20, 2))
    lab = ladder_lab()
    # Each row has another best kernel, and each kernel is within 10 % of the best everywhere.
    lab.bench.cost = lambda _text: 100.0
    lab.bench.on_row = lambda text, m: 1.0 + zlib.crc32(f"{text} {m}".encode()) % 1000 / 10_500
    run(lab, rows, max_trials=20)
    followed = Counter(trial.m for trial in lab.recorder.kept if trial.origin == FROM_LADDER)
    assert 1 <= max(followed[m] for m in rows[:-1]) <= 5  # a quarter of the trials at most
    late = ladder_lab()
    run(late, max_trials=600, max_seconds=1e-9)
    assert not [trial for trial in late.recorder.kept if trial.origin == FROM_LADDER]


def test_a_ladder_counts_as_the_jobs_that_have_as_many_trials() -> None:
    assert [work_of(rows) for rows in (1, 2, 5, 6, 64)] == [1, 2, 2, 3, 17]


def test_each_m_counts_once_and_a_long_range_is_refused_at_once() -> None:
    assert parse_rows(",".join(["1..8192"] * 5) + ",9") == [*(2**power for power in range(14)), 9]
    assert with_rows(PROBLEM, [8, 16] * 50, {})["m"] == [8, 16]
    with pytest.raises(InvalidProblem, match="at most 64"):
        with_rows(PROBLEM, range(10**12), {})
    assert TuneBody.model_validate({"m": [8, 16] * 50, "n": 8, "k": 8}).rows == [8, 16]


def test_a_row_that_loses_to_the_vendor_has_as_many_trials_again_and_may_race_again() -> None:
    lab = ladder_lab()
    run(lab)
    plain = [trial.m for trial in lab.recorder.kept if trial.origin != FROM_LADDER]
    losing = ladder_lab()
    losing.bench.vendor_us = 90.0
    run(losing)
    own = [trial.m for trial in losing.recorder.kept if trial.origin != FROM_LADDER]
    assert {m: own.count(m) for m in ROWS} == {m: 2 * plain.count(m) for m in ROWS}
    assert len(losing.bench.races) > len(lab.bench.races)
    assert losing.recorder.progress[-1].compile_s == 2 * lab.recorder.progress[-1].compile_s
    quick = ladder_lab()
    quick.bench.vendor_us = 90.0
    run(quick, level=Level.QUICK)
    assert len(quick.bench.races) == len(ROWS)


def losing_row(
    monkeypatch: pytest.MonkeyPatch,
    step: float,
    later_us: float = 100.0,
    disturbed: tuple[bool, bool] = (False, False),
    race_s: float = 0.0,
) -> tuple[Lab, BestConfig]:
    """A row where power may limit the device, that loses at first by 10 times and later by 5 times. In its
    search each kernel takes ``step`` times as long as the one before; under load 100 us, those of the second
    search ``later_us``. The flags say whether others disturb the first race, and the next one."""
    monkeypatch.setattr(ladder_job, "power_may_limit", lambda _problem, _spec: True)
    lab, times = ladder_lab(), dict[str, float]()
    lab.bench.on_row = lambda _text, _m: 1.0
    lab.bench.cost = lambda text: times.setdefault(text, 100.0 * step ** len(times))
    lab.bench.under_load = lambda text: 100.0 if text in list(times)[:10] else later_us
    raced = lab.bench.race

    def race(*given: Any) -> RaceSamples:
        time.sleep(race_s)
        later = bool(lab.bench.races)
        lab.bench.vendor_us = 20.0 if later else 10.0
        reasons = ("others kept 0.90 cores busy",) * disturbed[later]
        return dataclasses.replace(raced(*given), interference=reasons)

    monkeypatch.setattr(lab.bench, "race", race)
    lab.recorder.errors[32] = "for a test of one row"
    (best,) = run(lab, ladder=(32, 64), max_trials=10)
    assert len(times) == 20
    return lab, best


def test_a_row_whose_search_finds_nothing_new_is_not_raced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, best = losing_row(monkeypatch, step=1.01, race_s=0.5)
    assert lab.bench.races == [(str(best.config),)]
    assert best.speedup == pytest.approx(0.1, rel=0.02)
    told = lab.recorder.progress[-1]
    assert told.race_s < told.elapsed_s, "its seconds count once"


@pytest.mark.parametrize(
    ("later_us", "disturbed", "replaced"),
    [
        (95.0, (False, False), True),
        (105.0, (False, False), False),  # the first winner wins again: its first result counts
        (100.0, (False, False), False),  # it stays among equals
        (95.0, (False, True), False),
        (95.0, (True, True), True),
        (105.0, (True, False), True),
    ],
)
def test_the_first_winner_of_a_row_is_replaced_only_by_a_kernel_that_beat_it_undisturbed(
    later_us: float, disturbed: tuple[bool, bool], replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, best = losing_row(monkeypatch, 0.99, later_us, disturbed)
    (first,), final, (second,) = lab.bench.races
    tried = list(dict.fromkeys(lab.bench.tried))
    fastest = tried[9], tried[19]
    assert first == fastest[0]
    assert set(final) == set(fastest), "power may limit them, but the first winner takes part"
    assert second == fastest[later_us < 100.0]
    winner, speedup = (second, 20.0 / min(later_us, 100.0)) if replaced else (first, 10.0 / 100.0)
    assert str(best.config) == winner
    assert best.speedup == pytest.approx(speedup, rel=0.02)
    assert bool(best.timing.disturbed) == disturbed[replaced]


def test_where_power_may_limit_a_row_its_fastest_kernel_races_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_job, "RACED", 9.0)
    monkeypatch.setattr(shortlist, "WITHIN", 9.0)
    monkeypatch.setattr(ladder_job, "power_may_limit", lambda problem, _spec: problem.m >= 64)
    limited = ladder_lab()
    found = run(limited)
    assert [len(race) for race in limited.bench.races[:3]] == [1, 1, 1], "a head-to-head a row, no final"
    assert max(map(len, limited.bench.races[3:])) > 1, "a final"
    assert [best.problem.m for best in found] == list(ROWS)
    assert all(min(kernel.regret for kernel in best.kernels) == best.regret for best in found)


@pytest.mark.parametrize("done", every(3, [110, 60, 150]))
def test_a_resumed_job_gives_rows_that_lose_their_trials_once(done: int) -> None:
    whole = ladder_lab()
    whole.bench.vendor_us = 90.0
    best = run(whole)
    resumed = ladder_lab(whole.recorder.kept[:done])
    resumed.bench.vendor_us = 90.0
    assert run(resumed) == best
    assert resumed.recorder.kept == whole.recorder.kept
    assert resumed.bench.tried == whole.bench.tried[done:]


def test_a_row_races_a_winner_that_another_job_stored_meanwhile() -> None:
    """It is searched on once all the same."""
    plain, again = ladder_lab(), ladder_lab()
    plain.bench.vendor_us = again.bench.vendor_us = 90.0
    largest = run(plain, ladder=(32, 64))[-1]
    stored = dataclasses.replace(largest, job_id="job-0")
    again.bench.on_race = lambda _: setattr(again.recorder, "stored", stored)
    assert run(again, ladder=(32, 64))[-1].config == largest.config
    of_largest = [str(largest.config)]
    assert [list(race) for race in plain.bench.races[:3]].count(of_largest) == 1
    assert [list(race) for race in again.bench.races[:3]].count(of_largest) == 2
    assert [one for one in again.recorder.kept if one.m == 64] == [
        one for one in plain.recorder.kept if one.m == 64
    ]
