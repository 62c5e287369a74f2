"""Samplers over a pool, driven through Optuna itself."""

from collections.abc import Callable

import optuna
import pytest
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler
from optuna.trial import Trial
from toy_family import DEVICE, PROBLEM, TOY

from tuner.pool import Pool
from tuner.sampler import (
    DescentSampler,
    FixedSampler,
    PoolSampler,
    ProjectedSampler,
    distributions,
    parameters,
    row_of,
)


@pytest.fixture
def pool() -> Pool:
    return Pool.of(TOY, PROBLEM, DEVICE)


@pytest.fixture
def study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=RandomSampler(seed=0))


def ask(study: optuna.Study, sampler: PoolSampler) -> tuple[Trial, int]:
    study.sampler = sampler
    trial = study.ask(distributions(sampler.pool))
    return trial, row_of(sampler.pool, trial.params)


def spend(study: optuna.Study, pool: Pool, sampler: Callable[[int], PoolSampler], count: int) -> list[int]:
    rows = []
    for seed in range(count):
        trial, row = ask(study, sampler(seed))
        study.tell(trial, TOY.cost(pool.config(row)))
        rows.append(row)
    return rows


def test_a_row_survives_the_way_through_parameters(pool: Pool) -> None:
    assert [row_of(pool, parameters(pool, row)) for row in (0, 17, 620)] == [0, 17, 620]
    with pytest.raises(KeyError, match="not a valid config of toy"):
        row_of(pool, {"tile": 5, "stages": 4, "order": 0, "split": 0, "vector": 0})


@pytest.mark.parametrize(
    "inner", [None, lambda seed: RandomSampler(seed=seed), lambda seed: CmaEsSampler(seed=seed)]
)
def test_no_point_is_drawn_twice_until_none_is_left(
    study: optuna.Study, inner: Callable[[int], BaseSampler] | None
) -> None:
    tiles = TOY.knobs[0].values
    small = Pool("toy", TOY.knobs, Pool.of(TOY, PROBLEM, DEVICE).points[::9])
    rows = spend(
        study, small, lambda seed: ProjectedSampler(small, seed, inner(seed) if inner else None), len(small)
    )
    assert sorted(rows) == list(range(69))
    assert {small.config(row)["tile"] for row in rows} == set(tiles)
    with pytest.raises(IndexError, match="every one of the 69"):
        ask(study, ProjectedSampler(small, 1))


def test_asks_with_one_seed_and_history_agree(pool: Pool, study: optuna.Study) -> None:
    first = spend(study, pool, lambda seed: ProjectedSampler(pool, seed), 40)
    again = Pool.of(TOY, PROBLEM, DEVICE)
    second = spend(optuna.create_study(), again, lambda seed: ProjectedSampler(again, seed), 40)
    assert first == second


def test_pending_points_are_not_drawn_again(pool: Pool, study: optuna.Study) -> None:
    rows = [ask(study, ProjectedSampler(pool, 5))[1] for _ in range(50)]
    assert len(set(rows)) == 50


def test_a_fixed_sampler_draws_its_row_and_takes_it(pool: Pool, study: optuna.Study) -> None:
    _, row = ask(study, FixedSampler(pool, 33))
    assert row == 33
    assert pool.is_taken(33)


def test_descent_draws_the_neighbours_of_the_best_then_of_the_next(pool: Pool, study: optuna.Study) -> None:
    best, second = pool.index_of(TOY.make(48, 5, "columns", 2, 4)), pool.index_of(TOY.make(128, 1))
    assert best is not None
    assert second is not None
    around_best = set(pool.neighbours(best).tolist())
    around_second = set(pool.neighbours(second).tolist()) - around_best
    for row in (best, second):
        trial, _ = ask(study, FixedSampler(pool, row))
        study.tell(trial, TOY.cost(pool.config(row)))
    rows = []
    for seed in range(len(around_best) + len(around_second)):
        # Failures, so that these two stay the centres.
        trial, row = ask(study, DescentSampler(pool, seed, ProjectedSampler(pool, seed)))
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        rows.append(row)
    # By hand: 2 other tiles allow 5 stages, 4 other stages, 1 other order may split, 3 splits, 2 vectors.
    assert len(around_best) == 2 + 4 + 1 + 3 + 2
    assert set(rows[: len(around_best)]) == around_best
    assert set(rows[len(around_best) :]) == around_second
    _, beyond = ask(study, DescentSampler(pool, 0, FixedSampler(pool, 300)))
    assert beyond == 300


def test_foreign_parameters_are_refused(pool: Pool, study: optuna.Study) -> None:
    study.sampler = ProjectedSampler(pool, 0)
    with pytest.raises(ValueError, match="colour is no knob of toy"):
        study.ask({"colour": optuna.distributions.CategoricalDistribution((0, 1))})
