"""A head-to-head that fails costs a job its winner at most, and no trial."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from toy_family import TOY
from tune_lab import Lab

from kernels.registry import FAMILIES
from tilewright.errors import LaunchError
from tilewright.schema.job import Level
from tilewright.schema.trial import Outcome
from tuner.workers.process import WorkerDied, WorkerTimeout

ERRORS = [
    WorkerTimeout("no answer within 40 s; the process was killed"),
    WorkerDied("the process ended with SIGSEGV", "SIGSEGV"),
    LaunchError("the launch failed"),
]


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def lab_of(step: float) -> Lab:
    """One where each kernel takes ``step`` times as long as the one before it."""
    lab, times = Lab(), dict[str, float]()
    lab.bench.cost = lambda text: times.setdefault(text, 100.0 * step ** len(times))
    return lab


def fail_head_to_heads(lab: Lab, error: Exception, fails: Callable[[str, int], bool]) -> None:
    """Head-to-heads raise ``error`` if ``fails`` says so of the kernel and the number of races so far."""

    def race(_artifacts: object) -> None:
        first, *others = lab.bench.races[-1]
        if not others and fails(first, len(lab.bench.races)):
            raise error

    lab.bench.on_race = race


def kernels(lab: Lab) -> list[str]:
    """Those of the trials of a lab, in their order."""
    return [str(trial.config) for trial in lab.recorder.kept]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_head_to_head_that_fails_once_runs_again(error: Exception) -> None:
    plain, lab = lab_of(1.01), lab_of(1.01)
    fail_head_to_heads(lab, error, lambda _kernel, races: races == 2)
    assert lab.tune(max_trials=10) == plain.tune(max_trials=10)
    assert lab.bench.races == [plain.bench.races[0], *[plain.bench.races[1]] * 2]


@pytest.mark.parametrize("alone", [Outcome.OK, Outcome.LAUNCH_ERROR])
def test_a_winner_without_a_head_to_head_gives_way_to_the_other_candidates(alone: Outcome) -> None:
    lab = lab_of(1.01)
    fail_head_to_heads(lab, ERRORS[1], lambda kernel, _races: kernel == kernels(lab)[0])
    lab.bench.on_trial = lambda text: alone if lab.bench.races and text == kernels(lab)[0] else Outcome.OK
    best = lab.tune(max_trials=10)
    assert best is not None
    first, second, third, *_ = kernels(lab)
    tries = 2 if alone is Outcome.OK else 1
    final, *failed, second_final, head_to_head = lab.bench.races
    assert (set(final), failed) == ({first, second, third}, [(first,)] * tries)
    assert (set(second_final), head_to_head) == ({second, third}, (second,))
    assert str(best.config) == second


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
def test_a_lone_candidate_without_a_head_to_head_gives_way_to_the_next_trials(level: Level) -> None:
    lab = lab_of(1.12)  # above 10 % for the final, and below the 15 % of a trial that is given up
    fail_head_to_heads(lab, ERRORS[1], lambda kernel, _races: kernel == kernels(lab)[0])
    best = lab.tune(max_trials=10, level=level)
    assert best is not None
    first, second, *_ = kernels(lab)
    assert lab.bench.races == [(first,)] * (1 if level is Level.QUICK else 2) + [(second,)]
    assert str(best.config) == second
    assert lab.recorder.best == best


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
def test_a_device_where_no_head_to_head_works_does_not_race_every_kernel(level: Level) -> None:
    lab = lab_of(1.001)
    fail_head_to_heads(lab, ERRORS[1], lambda _kernel, _races: True)
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        lab.tune(max_trials=40, level=level)
    assert len({kernel for race in lab.bench.races for kernel in race}) == 6, "those of two shortlists"


def test_a_kernel_that_a_final_left_out_does_not_come_back() -> None:
    lab = lab_of(1.06)  # two in the final, one more that is complete

    def race(_artifacts: object) -> None:
        racing, is_final = lab.bench.races[-1], lab.bench.race_seeds[-1] == 0
        if kernels(lab)[1] in racing and not (is_final and len(racing) == 1):
            raise ERRORS[1]

    def tried(text: str) -> Outcome:
        return Outcome.WRONG_RESULT if lab.bench.races and text == kernels(lab)[0] else Outcome.OK

    lab.bench.on_race, lab.bench.on_trial = race, tried
    best = lab.tune(max_trials=10)
    assert best is not None
    assert str(best.config) == kernels(lab)[2], "0 was wrong when it was tried again, 1 has no head-to-head"


def test_a_kernel_that_is_wrong_in_a_final_leaves_it() -> None:
    plain, lab = lab_of(1.01), lab_of(1.01)
    plain.tune(max_trials=10)
    first, second, third, *_ = kernels(plain)
    lab.bench.wrong_under_load = {first}
    best = lab.tune(max_trials=10)
    assert best is not None
    assert [set(race) for race in lab.bench.races] == [{first, second, third}, {second, third}, {second}]
    assert str(best.config) == second


def test_a_final_that_failed_may_still_lose_a_kernel_that_is_wrong() -> None:
    plain, lab = lab_of(1.01), lab_of(1.01)
    plain.tune(max_trials=10)
    first, second, third, *_ = kernels(plain)

    def race(_artifacts: object) -> None:
        if first in lab.bench.races[-1]:
            raise ERRORS[1]

    lab.bench.on_race, lab.bench.wrong_under_load = race, {second}
    lab.bench.on_trial = lambda text: (
        Outcome.LAUNCH_ERROR if lab.bench.races and text == first else Outcome.OK
    )
    best = lab.tune(max_trials=10)
    assert best is not None
    assert [set(race) for race in lab.bench.races[:3]] == [{first, second, third}, {second, third}, {third}]
    assert str(best.config) == third


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
def test_a_kernel_that_is_wrong_in_its_head_to_head_gives_way(level: Level) -> None:
    plain, lab = lab_of(1.12), lab_of(1.12)  # a lone candidate runs no final
    plain.tune(max_trials=10, level=level)
    first, second, *_ = kernels(plain)
    lab.bench.wrong_under_load = {first}
    best = lab.tune(max_trials=10, level=level)
    assert best is not None
    assert lab.bench.races == [(first,), (second,)]
    assert str(best.config) == second


def test_where_every_kernel_is_wrong_under_load_none_wins() -> None:
    plain, lab = lab_of(1.01), lab_of(1.01)
    plain.tune(max_trials=10)
    lab.bench.wrong_under_load = set(kernels(plain))
    with pytest.raises(LaunchError, match="wrong results under the load of a race: an element is off"):
        lab.tune(max_trials=10)
    assert lab.recorder.best is None
