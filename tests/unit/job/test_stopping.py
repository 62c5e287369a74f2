"""Why a search ends."""

import dataclasses
import math

import pytest
from toy_family import PROBLEM, TOY

from tilewright.schema.job import TuneRequest
from tilewright.schema.trial import Outcome, Timing, Trial
from tuner.job.loop import LOOK_BACK, SETTLED, gain_per_s, why_gain_ends
from tuner.search.search import INITIAL


def trial(number: int, us: float, outcome: Outcome = Outcome.OK) -> Trial:
    return Trial(
        number,
        TOY.make(16, 1),
        outcome=outcome,
        timing=Timing((us,), us, us, us, "lab"),
        check_s=0.05,
        measure_s=0.05,
    )


def flat(count: int, us: float) -> list[Trial]:
    return [trial(number, us) for number in range(count)]


def test_the_gain_is_that_of_the_last_30_trials_for_a_device_second() -> None:
    trials = [trial(0, 200.0), *flat(LOOK_BACK - 1, 200.0), trial(LOOK_BACK, 100.0)]
    # 30 trials of 0.1 s halved the time: ln 2 in 3 s.
    assert gain_per_s(trials) == pytest.approx(math.log(2.0) / 3.0)
    assert gain_per_s([trial(0, 200.0), *flat(LOOK_BACK, 200.0)]) == 0.0


def test_too_few_trials_tell_no_gain() -> None:
    assert gain_per_s(flat(LOOK_BACK, 100.0)) is None
    assert gain_per_s([]) is None
    slow = [trial(number, 100.0, Outcome.PRUNED) for number in range(LOOK_BACK)]
    assert gain_per_s([slow[0], *slow]) is None


def test_a_request_without_a_threshold_never_ends_by_it() -> None:
    still = flat(LOOK_BACK + 1, 100.0)
    assert why_gain_ends(TuneRequest(PROBLEM), still) is None
    reason = why_gain_ends(TuneRequest(PROBLEM, min_gain_per_s=0.001), still)
    assert reason == "the last 30 trials gained 0.00% per device second, less than 0.10%"
    assert why_gain_ends(TuneRequest(PROBLEM, min_gain_per_s=0.001), still[:20]) is None


def test_an_expected_gain_is_divided_by_the_seconds_of_a_trial() -> None:
    few = flat(SETTLED + 1, 100.0)
    # A trial takes 0.1 s.
    assert gain_per_s(few, 0.0004) == pytest.approx(0.004)
    request = TuneRequest(PROBLEM, min_gain_per_s=0.005)
    reason = why_gain_ends(request, few, 0.0004)
    assert reason == "the next trial is expected to gain 0.40% per device second, less than 0.50%"
    assert why_gain_ends(request, few, 0.0006) is None
    # What the model expects counts, also where the last trials gained nothing.
    assert why_gain_ends(request, flat(2 * LOOK_BACK, 100.0), 0.0006) is None
    assert why_gain_ends(TuneRequest(PROBLEM), few, 0.0) is None


def test_a_model_ends_no_search_that_found_a_better_config_of_late() -> None:
    request = TuneRequest(PROBLEM, min_gain_per_s=0.005)
    begun = [trial(0, 200.0), *flat(SETTLED, 100.0)]
    assert why_gain_ends(request, begun, 0.0) is None
    assert why_gain_ends(request, [*begun, trial(99, 100.0)], 0.0) is not None


def test_a_search_that_began_with_initial_configs_ends_once_its_best_is_20_trials_old() -> None:
    request = TuneRequest(PROBLEM, min_gain_per_s=0.005)
    first, *others = flat(SETTLED, 100.0)
    begun = [dataclasses.replace(first, origin=INITIAL), *others]
    assert why_gain_ends(request, begun, 0.1) is None
    settled = [*begun, trial(99, 100.0)]
    assert why_gain_ends(request, settled, 0.1) == "none of the last 20 trials is faster"
    assert why_gain_ends(request, [*settled, trial(100, 99.0)], 0.1) is None
    assert why_gain_ends(TuneRequest(PROBLEM), settled, 0.1) is None
