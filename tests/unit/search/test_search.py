"""Ask and tell: what is proposed, in which order, and that it only depends on what was told."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_family import DEVICE, FAILED, PROBLEM, SLOW_TOY, TINY, TOY, Result, ToyFamily, drive, measure

from tilewright.schema.config import Config
from tilewright.schema.trial import Outcome
from tuner.search.arm import Arm
from tuner.search.pool import Pool
from tuner.search.search import DEPTH, Search, open_search


def toy_search(budget: int, seed: int = 0, initial_configs: Sequence[Config] = ()) -> Search:
    return open_search([TOY], PROBLEM, DEVICE, budget, seed, initial_configs)


def test_initial_configs_come_first_then_the_model() -> None:
    given = TOY.make(96, 1, "columns")
    told = drive(toy_search(12, initial_configs=[given]))
    assert [one.config for one in told[:3]] == [given, TOY.make(32, 2), TOY.make(64, 2)]
    assert [one.origin for one in told] == ["initial"] * 3 + ["search"] * 9
    assert [one.number for one in told] == list(range(12))


def test_initial_configs_that_are_not_valid_here_are_left_out() -> None:
    foreign = [TOY.make(128, 8), TOY.make(17, 1), Config.of("other", {"tile": 16})]
    told = drive(toy_search(12, initial_configs=foreign))
    assert [one.config for one in told[:2]] == TOY.heuristic_configs(PROBLEM, DEVICE)[:2]
    assert told[2].origin == "search"


def test_a_valid_seed_outside_of_the_searched_values_is_tried_once() -> None:
    outside = TOY.make(16, 8)
    search = toy_search(20, initial_configs=[outside, outside])
    assert [one.config for one in drive(search)].count(outside) == 1
    assert search.measured == 20


def test_initial_configs_spend_at_most_half_of_the_budget() -> None:
    many = [TOY.make(16, stages, split=split) for stages in (1, 2, 3) for split in (1, 2, 4)]
    told = drive(toy_search(10, initial_configs=many))
    assert Counter(one.origin for one in told) == {"initial": 5, "search": 5}


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_and_results_give_the_same_proposals(seed: int) -> None:
    assert drive(toy_search(60, seed)) == drive(toy_search(60, seed))


def test_another_seed_gives_other_proposals() -> None:
    assert drive(toy_search(60, 0)) != drive(toy_search(60, 1))


@pytest.mark.parametrize("interrupted", [1, 7, 33, 59])
def test_a_replayed_search_goes_on_as_if_never_interrupted(interrupted: int) -> None:
    whole = drive(toy_search(60), flaky)
    before = drive(toy_search(60), flaky, stop_after=interrupted)
    assert drive(toy_search(60), flaky, known=before) == whole


def flaky(config: Config) -> Result:
    return FAILED if int(config.digest, 16) % 5 == 0 else measure(config)


@settings(max_examples=15, deadline=None)
@given(
    outcomes=st.lists(st.sampled_from([*Outcome]), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
    budget=st.integers(1, 60),
)
def test_never_invalid_never_twice(outcomes: list[Outcome], seed: int, budget: int) -> None:
    told: list[Outcome] = []

    def result(config: Config) -> Result:
        told.append(outcomes[len(told) % len(outcomes)])
        measured = told[-1] in (Outcome.OK, Outcome.PRUNED)
        return told[-1], TOY.cost(config) if measured else None

    configs = [one.config for one in drive(toy_search(budget, seed), result, stop_after=60)]
    assert len(set(configs)) == len(configs)
    assert [TOY.why_invalid(config, PROBLEM, DEVICE) for config in configs] == [None] * len(configs)


def test_a_search_ends_when_every_config_was_tried() -> None:
    search = open_search([TINY], PROBLEM, DEVICE, 10_000)
    assert search.budget == search.size == 30
    told = drive(search)
    assert len({one.config for one in told}) == search.measured == 30
    assert search.ask() is None


def test_failures_alone_end_with_the_space() -> None:
    search = open_search([TINY], PROBLEM, DEVICE, 10)
    assert len(drive(search, lambda _config: FAILED)) == 30
    assert search.measured == 0


def test_failures_teach() -> None:
    """Where everything of the two slower orders fails, these are soon avoided."""

    def only_columns(config: Config) -> Result:
        return measure(config) if config["order"] == "columns" else FAILED

    search = toy_search(60, seed=3)
    soon = drive(search, only_columns)[10:20]
    fraction = np.mean([one.config["order"] == "columns" for one in soon])
    assert fraction > 0.8  # 4 in 9 of the valid configs are


def test_better_than_random_over_20_seeds() -> None:
    pool = Pool.of(TOY, PROBLEM, DEVICE)
    costs = np.array([TOY.cost(pool.config(row)) for row in range(len(pool))])
    budget = 40
    ours, random = [], []
    for seed in range(20):
        told = drive(Search([Arm(Pool.of(TOY, PROBLEM, DEVICE), [])], budget, seed))
        ours.append(costs.min() / min(TOY.cost(one.config) for one in told))
        drawn = np.random.default_rng(seed).choice(costs, budget, replace=False)
        random.append(costs.min() / drawn.min())
    assert np.mean(ours) > np.mean(random) + 0.03
    assert np.mean(ours) > 0.93


def test_the_faster_family_gets_most_of_the_budget() -> None:
    told = drive(open_search([TOY, SLOW_TOY], PROBLEM, DEVICE, 100))
    asked = Counter(one.family for one in told)
    assert [one.family for one in told[:4]] == ["toy", "slow_toy"] * 2
    assert asked["toy"] > 80
    assert asked["slow_toy"] >= 4


def test_equal_families_share_the_budget() -> None:
    twin = ToyFamily("slow_toy", 1.0)
    costs = {"toy": TOY, "slow_toy": twin}

    def result(config: Config) -> Result:
        return Outcome.OK, costs[config.family].cost(config)

    asked = Counter(one.family for one in drive(open_search([TOY, twin], PROBLEM, DEVICE, 60), result))
    assert min(asked.values()) >= 15


def test_asks_run_a_fixed_number_ahead_of_tells() -> None:
    search = toy_search(50)
    for _ in range(DEPTH):
        assert search.ready
        search.ask()
    assert not search.ready
    with pytest.raises(RuntimeError, match=f"{DEPTH} proposals are open"):
        search.ask()


def test_tells_out_of_order_or_without_sense_are_refused() -> None:
    search = toy_search(50)
    first, second = search.ask(), search.ask()
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="order of asks"):
        search.tell(second, Outcome.OK, 1.0)
    with pytest.raises(ValueError, match="has a value"):
        search.tell(first, Outcome.OK, None)
    with pytest.raises(ValueError, match="has a value"):
        search.tell(first, Outcome.TIMEOUT, 1.0)


def test_replaying_nonsense_is_refused() -> None:
    search = toy_search(50)
    search.replay(TOY.make(16, 1), "initial")
    with pytest.raises(ValueError, match="proposed before"):
        search.replay(TOY.make(16, 1), "initial")


def test_a_replayed_family_that_is_not_searched_takes_its_number_and_teaches_nothing() -> None:
    search = toy_search(50)
    lost = search.replay(SLOW_TOY.make(16, 1), "initial")
    following = search.ask()
    assert following is not None
    assert (lost.number, following.number) == (0, 1)
    search.tell(lost, Outcome.INVALID, None)
    search.tell(following, Outcome.OK, 1.0)
    assert (search.measured, search.asked) == (1, 2)
