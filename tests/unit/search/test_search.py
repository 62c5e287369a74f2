"""Ask and tell: what is proposed, in which order, and that it only depends on what was told."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_family import DEVICE, FAILED, PROBLEM, SLOW_TOY, TINY, TOY, Result, ToyFamily, drive, measure

from tilewright.schema.config import Config
from tilewright.schema.job import QUICK_TRIALS, Sampler
from tilewright.schema.trial import Outcome
from tuner.search.arm import Arm
from tuner.search.pool import Pool
from tuner.search.search import DEPTH, Proposal, Search, open_search
from tuner.search.staged import FEWEST_JUDGED


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


def test_initial_configs_spend_at_most_a_third_of_the_budget_or_that_of_a_quick_job() -> None:
    many = [
        TOY.make(tile, stages, split=split)
        for tile in (16, 32)
        for stages in (1, 2, 3)
        for split in (1, 2, 4)
    ]
    third = drive(toy_search(51, initial_configs=many))
    assert Counter(one.origin for one in third) == {"initial": 17, "search": 34}
    told = drive(toy_search(30, initial_configs=many))
    assert Counter(one.origin for one in told) == {"initial": QUICK_TRIALS, "search": 30 - QUICK_TRIALS}
    few = drive(toy_search(9, initial_configs=many))
    assert Counter(one.origin for one in few) == {"initial": 9}, "a model would learn too little"


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_and_results_give_the_same_proposals(seed: int) -> None:
    assert drive(toy_search(60, seed)) == drive(toy_search(60, seed))


def test_another_seed_gives_other_proposals() -> None:
    assert drive(toy_search(60, 0)) != drive(toy_search(60, 1))


def test_a_replayed_search_goes_on_as_if_never_interrupted() -> None:
    whole = drive(toy_search(60), flaky)
    for interrupted in (1, 7, 33, 59):
        assert drive(toy_search(60), flaky, known=whole[:interrupted]) == whole


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
    told = drive(search)
    assert search.planned == search.size == 30
    assert len({one.config for one in told}) == search.measured == 30
    assert search.ask() is None


def test_initial_configs_of_values_that_are_not_searched_are_planned_too() -> None:
    search = open_search([TOY], PROBLEM, DEVICE, 10_000, 0, [TOY.make(32, 8)])
    drive(search)
    assert (search.planned, search.measured, search.size) == (622, 622, 621)


def test_configs_are_listed_once_the_initial_ones_do_not_suffice() -> None:
    configs = [TOY.make(tile, stages) for tile in (16, 32, 48) for stages in (1, 2, 3, 4, 5)]
    initial = [config for config in configs if TOY.why_invalid(config, PROBLEM, DEVICE) is None]
    search = open_search([TOY], PROBLEM, DEVICE, 60, 1, initial)
    told = drive(search, stop_after=10)
    assert {one.origin for one in told} == {"initial"}
    assert (search.size, search.planned) == (0, 60)
    search.list_configs()
    assert search.size > 60


def test_a_sampler_that_comes_late_knows_what_was_tried_before_it() -> None:
    def proposals(early: bool) -> list[Config]:
        configs = [TOY.make(tile, stages) for tile in (16, 32, 48) for stages in (1, 2, 3, 4, 5)]
        search = open_search([TOY, SLOW_TOY], PROBLEM, DEVICE, 60, 1, configs)
        search.reserve([TOY.make(64, 2)])
        if early:  # that opens their studies
            assert [arm.unclaimed > 0 for arm in search._arms.values()] == [True, True]
        return [one.config for one in drive(search, stop_after=50)]

    late = proposals(early=False)
    assert late == proposals(early=True)
    assert len(set(late)) == len(late) == 50
    assert TOY.make(64, 2) not in late


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


@pytest.mark.long
def test_better_than_random_over_20_seeds() -> None:
    pool = Pool.of(TOY, PROBLEM, DEVICE)
    costs = np.array([TOY.cost(pool.config(row)) for row in range(len(pool))])
    budget = 40
    ours, random = [], []
    for seed in range(20):
        told = drive(Search([Arm("toy", lambda: Pool.of(TOY, PROBLEM, DEVICE), [])], budget, seed))
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


def test_odds_share_out_the_first_asks_and_results_the_later_ones() -> None:
    twin = ToyFamily("slow_toy", 0.5)
    costs = {"toy": TOY, "slow_toy": twin}

    def result(config: Config) -> Result:
        return Outcome.OK, costs[config.family].cost(config)

    def asked(odds: dict[str, float], trials: int) -> Counter[str]:
        told = drive(open_search([TOY, twin], PROBLEM, DEVICE, 60, odds=odds), result, stop_after=trials)
        return Counter(one.family for one in told)

    unlikely = {"slow_toy": 1 / 8}
    assert asked({}, 10)["slow_toy"] >= 5
    assert asked(unlikely, 10)["slow_toy"] == 1
    assert asked(unlikely, 60)["slow_toy"] > 30, "it is twice as fast"
    assert asked({"toy": 1 / 8, "slow_toy": 1 / 8}, 10) == asked({}, 10), "only those that are searched count"


def test_an_unlikely_family_that_hardly_beats_the_first_config_of_another_stays_behind() -> None:
    times = {"toy": iter([160.0, *[100.0] * 30]), "slow_toy": iter([150.0] * 30)}

    def result(config: Config) -> Result:
        return Outcome.OK, next(times[config.family])

    search = open_search([TOY, ToyFamily("slow_toy")], PROBLEM, DEVICE, 60, odds={"slow_toy": 1 / 8})
    asked = Counter(one.family for one in drive(search, result, stop_after=20))
    assert asked["slow_toy"] <= 3


def test_a_family_is_weighed_though_the_first_configs_of_the_other_failed() -> None:
    times = {"toy": iter([None, None, 100.0, *[90.0] * 30]), "slow_toy": iter([150.0] * 30)}

    def result(config: Config) -> Result:
        us = next(times[config.family])
        return (Outcome.OK, us) if us else FAILED

    search = open_search([TOY, ToyFamily("slow_toy")], PROBLEM, DEVICE, 30)
    assert len(drive(search, result)) == 32


def test_an_unlikely_family_begins_with_an_initial_config_when_their_part_of_the_budget_is_spent() -> None:
    many = [TOY.make(tile, stages) for tile in (16, 32, 48, 64) for stages in (1, 2, 3, 4, 5) if tile < 64]
    search = open_search(
        [TOY, SLOW_TOY], PROBLEM, DEVICE, 60, initial_configs=many, odds={"slow_toy": 1 / 32}
    )
    told = drive(search)
    late = next(one for one in told if one.family == "slow_toy")
    assert late.number > 20
    assert late.origin == "initial"


def test_an_unlikely_family_keeps_the_search_going_with_fewer_results_or_closer_ones() -> None:
    def gains(odds: dict[str, float], scale: float, results: int) -> bool:
        other = ToyFamily("slow_toy", scale)
        search = open_search([TOY, other], PROBLEM, DEVICE, 120, depth=40, odds=odds)
        tiles = itertools.product((16, 48, 64, 96, 128), (1, 2))
        for config in [TOY.make(tile, 1, split=split) for tile, split in tiles]:
            search.tell(search.propose(config, "search"), Outcome.OK, TOY.cost(config))
        for stages in range(1, results + 1):
            config = other.make(48, stages, "columns")
            search.tell(search.propose(config, "search"), Outcome.OK, other.cost(config))
        while (proposal := search.ask()) and (proposal.family, proposal.origin) != ("toy", "search"):
            pass  # its model is asked after its initial configs
        return search.expected_gain is not None

    unlikely = {"slow_toy": 1 / 8}
    assert gains({}, 9.0, 3)
    assert not gains({}, 9.0, 1), "two more results may show that it is faster"
    assert gains(unlikely, 9.0, 1)
    assert not gains({}, 1.6, 3)
    assert gains(unlikely, 1.6, 3)
    assert not gains(unlikely, 0.9, 3)


def test_the_expected_gain_falls_as_the_best_is_found() -> None:
    def after(results: int) -> float | None:
        search = toy_search(120)
        drive(search, stop_after=results)
        return search.expected_gain

    assert after(6) is None  # too few results to judge
    early, late = after(14), after(80)
    assert early is not None
    assert late is not None
    assert early > 0.002
    assert late < 0.1 * early


def test_a_slower_family_is_expected_to_gain_less_and_one_without_results_is_not_given_up() -> None:
    search = open_search([TOY, SLOW_TOY], PROBLEM, DEVICE, 120)
    drive(search, stop_after=30)
    fast, slow = (search._arms[family.name] for family in (TOY, SLOW_TOY))
    assert len(slow.shown_us) < FEWEST_JUDGED <= len(fast.shown_us)
    best_us = fast.best_us(99)
    assert best_us is not None
    # Three times slower: no model yet, and it does not keep the search going.
    assert slow.expected_gain(best_us) is None
    assert search.expected_gain == fast.expected_gain(best_us)
    assert fast.expected_gain(best_us / 2) < 0.5 * fast.expected_gain(best_us)
    unknown = open_search([TOY, TINY], PROBLEM, DEVICE, 120)
    drive(unknown, stop_after=2)
    assert unknown.expected_gain is None


def test_asks_run_a_fixed_number_ahead_of_tells() -> None:
    search = toy_search(50)
    for _ in range(DEPTH):
        assert search.ready
        search.ask()
    assert not search.ready
    with pytest.raises(RuntimeError, match=f"{DEPTH} proposals are pending"):
        search.ask()
    assert [one.number for one in search.pending] == [0, 1, 2, 3]


def test_another_device_makes_room_for_another_proposal() -> None:
    search = open_search([TOY], PROBLEM, DEVICE, 50, depth=1)
    search.ask()
    assert not search.ready
    search.depth = 2
    search.ask()
    assert not search.ready


def test_results_without_sense_are_refused() -> None:
    search = toy_search(50)
    first, second = search.ask(), search.ask()
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="has a value"):
        search.tell(first, Outcome.OK, None)
    with pytest.raises(ValueError, match="has a value"):
        search.tell(first, Outcome.TIMEOUT, 1.0)
    search.tell(second, Outcome.OK, 1.0)
    assert search.pending == (first,)
    with pytest.raises(ValueError, match="proposal 1 is not pending"):
        search.tell(second, Outcome.OK, 1.0)


@pytest.mark.parametrize("recorded", [TOY.make(32, 2), TOY.make(16, 8)], ids=["searched", "outside"])
def test_a_recorded_initial_config_waits_for_its_number(recorded: Config) -> None:
    search = toy_search(20, initial_configs=[recorded])
    search.reserve([recorded, SLOW_TOY.make(16, 1)])
    search.ask()
    search.ask()
    assert recorded not in [one.config for one in search.pending]
    assert search.propose(recorded, "initial").number == 2
    assert search.pending[-1].config == recorded


def shuffled(open_now: Sequence[Proposal], told: int, seed: int) -> Proposal:
    """The pending proposal whose result comes next on devices of unequal speed."""
    return open_now[int(np.random.default_rng((seed, told)).integers(len(open_now)))]


def spread(
    search: Search,
    order: int,
    stop_after: int | None = None,
    known: Sequence[Proposal] = (),
    result: Callable[[Config], Result] = measure,
) -> tuple[list[Proposal], list[Proposal]]:
    """Drive a search on several devices; gives the proposals in the order of asks and in that of results.

    ``known`` are the results of an interrupted run in their order; ``order`` seeds the order of others.
    """
    asked, told = list[Proposal](), list[Proposal]()
    search.reserve(one.config for one in known)
    numbers = {one.number: one for one in known}
    while stop_after is None or len(told) < stop_after:
        while search.ready and search.measured + search.in_flight < search.budget:
            old = numbers.get(search.asked)
            proposal = search.propose(old.config, old.origin) if old else search.ask()
            if proposal is None:
                break
            asked.append(proposal)
        if not search.pending:
            break
        due = known[len(told)] if len(told) < len(known) else shuffled(search.pending, len(told), order)
        search.tell(due, *result(due.config))
        told.append(due)
    return asked, told


@pytest.mark.parametrize("kind", Sampler)
@pytest.mark.parametrize("depth", [2, 8])
def test_the_same_seed_and_order_of_results_give_the_same_proposals(kind: Sampler, depth: int) -> None:
    def searched(order: int) -> list[Proposal]:
        search = open_search([TOY, SLOW_TOY], PROBLEM, DEVICE, 40, 5, sampler=kind, depth=depth)
        return spread(search, order)[0]

    one, again, other = searched(1), searched(1), searched(2)
    assert one == again
    assert len({proposal.config for proposal in one}) == 40
    assert kind is Sampler.RANDOM or one != other


@pytest.mark.parametrize("kind", Sampler)
def test_a_search_on_devices_of_unequal_speed_goes_on_as_if_never_interrupted(kind: Sampler) -> None:
    def open_it() -> Search:
        return open_search([TOY, SLOW_TOY], PROBLEM, DEVICE, 40, 3, sampler=kind, depth=8)

    whole = spread(open_it(), 4, result=flaky)
    for interrupted in (1, 17, 38):
        assert spread(open_it(), 4, known=whole[1][:interrupted], result=flaky) == whole


@pytest.mark.parametrize("kind", Sampler)
def test_a_search_that_goes_on_with_fewer_devices_tries_nothing_twice(kind: Sampler) -> None:
    def open_it(depth: int) -> Search:
        return open_search([TINY], PROBLEM, DEVICE, 29, 3, sampler=kind, depth=depth)

    _, told = spread(open_it(8), 4, stop_after=12)
    known = sorted(told, key=lambda one: one.number)
    assert known[-1].number > 11, "there are gaps"
    search = open_it(2)
    search.reserve(one.config for one in known)
    numbers, seen = {one.number: one for one in known}, list[Proposal]()
    while search.measured < search.budget:
        while search.ready:
            old = numbers.get(search.asked)
            proposal = search.propose(old.config, old.origin) if old else search.ask()
            if proposal is None:
                break
            seen.append(proposal)
        search.tell(search.pending[0], *measure(search.pending[0].config))
    assert len({one.config for one in seen}) == len(seen)
    assert {one.config for one in known} <= {one.config for one in seen}


def test_a_config_is_proposed_once() -> None:
    search = toy_search(50)
    search.propose(TOY.make(16, 1), "initial")
    with pytest.raises(ValueError, match="proposed before"):
        search.propose(TOY.make(16, 1), "initial")


def test_a_config_whose_family_is_not_searched_takes_a_number_and_teaches_nothing() -> None:
    search = toy_search(50)
    lost = search.propose(SLOW_TOY.make(16, 1), "initial")
    following = search.ask()
    assert following is not None
    assert (lost.number, following.number) == (0, 1)
    search.tell(lost, Outcome.INVALID, None)
    search.tell(following, Outcome.OK, 1.0)
    assert (search.measured, search.asked) == (1, 2)
