"""Initial configs of several families: their order and number, and that a resumed search agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from toy_family import DEVICE, FAILED, PROBLEM, Result, ToyFamily, drive

from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.search.search import Proposal, Search, open_search


class HeuristicToy(ToyFamily):
    """A toy family with a given number of heuristic configs."""

    def __init__(self, name: str, scale: float, count: int) -> None:
        super().__init__(name, scale)
        self._count = count

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        del problem, device
        made = [
            self.make(tile, stages, order, 1, vector)
            for order in ("rows", "columns")
            for vector in (1, 2, 4)
            for stages in (1, 2)
            for tile in (16, 32, 48, 64)
        ]
        return made[: self._count]


def result_of(*families: ToyFamily) -> Callable[[Config], Result]:
    named = {one.name: one for one in families}
    return lambda config: (Outcome.OK, named[config.family].cost(config))


def search_of(*families: ToyFamily, budget: int = 60) -> Search:
    return open_search(families, PROBLEM, DEVICE, budget)


def test_initial_configs_go_by_weight_within_a_third_of_the_budget() -> None:
    fast, slow = HeuristicToy("fast", 1.0, 48), HeuristicToy("slow", 3.0, 48)
    told = drive(search_of(fast, slow, budget=90), result_of(fast, slow))
    initial_configs = Counter(one.family for one in told if one.origin == "initial")
    assert initial_configs.total() == 30
    assert initial_configs["fast"] >= 20 > 10 >= initial_configs["slow"] >= 2


def test_two_heuristic_configs_follow_each_known_one() -> None:
    """Neither keeps the other out where initial_configs are few."""
    family = HeuristicToy("toy", 1.0, 48)
    heuristic = family.heuristic_configs(PROBLEM, DEVICE)
    known = [family.make(64, stages, order, 1, 4) for stages in (1, 2) for order in ("rows", "columns")]
    search = open_search([family], PROBLEM, DEVICE, 16, initial_configs=known)
    asked = [one.config for one in drive(search, result_of(family)) if one.origin == "initial"]
    valid = [one for one in heuristic if family.why_invalid(one, PROBLEM, DEVICE) is None]
    assert asked[:4] == [known[0], valid[0], valid[1], known[1]]
    assert len(set(asked) & set(known)) >= 3
    assert len(set(asked) - set(known)) >= 3


def test_initial_configs_of_a_slow_family_are_not_tried_for_want_of_others() -> None:
    fast, slow = HeuristicToy("fast", 1.0, 4), HeuristicToy("slow", 3.0, 48)
    told = drive(search_of(fast, slow), result_of(fast, slow))
    assert Counter(one.family for one in told)["slow"] <= 15


def test_a_family_whose_first_seed_fails_is_asked_again_soon() -> None:
    rest, best = [HeuristicToy(name, 1.0, 20) for name in "abcd"], HeuristicToy("best", 0.5, 20)
    measured, first = result_of(*rest, best), best.heuristic_configs(PROBLEM, DEVICE)[0]
    told = drive(
        search_of(*rest, best, budget=64), lambda config: FAILED if config == first else measured(config)
    )
    asked = [one.number for one in told if one.family == "best"]
    assert asked[1] < 16
    assert len(asked) > 20


def test_each_family_has_one_seed_even_where_that_is_more_than_their_part() -> None:
    families = [HeuristicToy(name, 1.0, 4) for name in "abcdefghijklmnopqr"]
    told = drive(search_of(*families, budget=20), result_of(*families))
    assert sorted(one.family for one in told if one.origin == "initial") == list("abcdefghijklmnopqr")


@pytest.mark.parametrize("interrupted", [1, 7, 19, 33, 59])
def test_a_replayed_search_of_several_families_goes_on_likewise(interrupted: int) -> None:
    fast, slow = HeuristicToy("fast", 1.0, 40), HeuristicToy("slow", 1.5, 40)
    measured = result_of(fast, slow)

    def result(config: Config) -> Result:
        return FAILED if int(config.digest, 16) % 5 == 0 else measured(config)

    whole = drive(search_of(fast, slow), result)
    before = drive(search_of(fast, slow), result, stop_after=interrupted)
    assert drive(search_of(fast, slow), result, known=before) == whole


def test_a_record_of_families_in_turn_is_replayed() -> None:
    """As jobs were that an earlier version began."""
    fast, slow = HeuristicToy("fast", 1.0, 40), HeuristicToy("slow", 3.0, 40)
    pairs = zip(fast.heuristic_configs(PROBLEM, DEVICE), slow.heuristic_configs(PROBLEM, DEVICE), strict=True)
    alternating = [config for pair in pairs for config in pair][:30]
    known = [Proposal(number, config, "initial") for number, config in enumerate(alternating)]
    told = drive(search_of(fast, slow), result_of(fast, slow), known=known)
    assert told[:30] == known
    assert {one.origin for one in told[30:]} == {"search"}
