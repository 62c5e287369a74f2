"""First tries from the store, and requests of an older release."""

from __future__ import annotations

import dataclasses

from store_samples import HOST, HOST_CLASS, OTHER_HOST, artifact, best, config, problem, request

from tilewright.config import Config
from tilewright.policy import Policy
from tilewright.problem import GemmProblem, Layout
from tilewright.trial import BestConfig
from tuner.store import artifacts, codec
from tuner.store import best as winners
from tuner.store.database import Store
from tuner.store.seeds import first_tries


def won(of: GemmProblem, tile: int, ties: tuple[Config, ...] = (), device=HOST) -> BestConfig:
    return dataclasses.replace(best(of, device), config=config(tile), ties=ties)


def put(store: Store, *found: BestConfig) -> None:
    with store.begin() as session:
        artifacts.put(session, artifact())
        for item in found:
            winners.put(session, item)


def tries(store: Store) -> list[Config]:
    with store.read() as session:
        return first_tries(session, HOST_CLASS, problem())


def test_near_problems_come_before_other_devices_and_each_config_once(store: Store) -> None:
    put(store, won(problem(1024), 1), won(problem(128), 2))
    put(store, won(problem(), 3, (config(4), config(2)), OTHER_HOST), won(problem(256), 5, device=OTHER_HOST))
    assert tries(store) == [config(tile) for tile in (2, 1, 3, 4, 5)]


def test_few_are_taken_from_here_and_from_elsewhere(store: Store) -> None:
    put(store, *(won(problem(64 * i), i) for i in range(1, 6)))
    put(store, won(problem(), 10, tuple(config(10 + i) for i in range(1, 12)), OTHER_HOST))
    assert tries(store) == [config(tile) for tile in (1, 2, 3, *range(10, 18))]


def test_another_type_or_layout_says_nothing(store: Store) -> None:
    other = GemmProblem(64, 64, 64, dtype="float64", layout="nn")
    put(store, won(problem(layout=Layout.NT), 1, device=OTHER_HOST), won(other, 2, device=OTHER_HOST))
    assert tries(store) == []


def test_a_request_keeps_its_policy_and_older_ones_have_the_default() -> None:
    asked = dataclasses.replace(request(), policy=Policy.TPE, min_gain_per_s=0.01)
    data = codec.options(asked)
    assert codec.request(asked.problem, data) == asked
    del data["policy"], data["min_gain_per_s"]
    assert codec.request(asked.problem, data).policy is Policy.STAGED
