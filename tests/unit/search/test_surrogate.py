"""The model of the staged search: its posterior against dense algebra, its fit against differences."""

import math

import numpy as np
import pytest
from toy_family import DEVICE, PROBLEM, TINY, TOY

from tuner.search import gp
from tuner.search.gp import Scales, Surrogate, correlation, fitted, standardised
from tuner.search.pool import Pool


@pytest.fixture
def pool() -> Pool:
    return Pool.of(TOY, PROBLEM, DEVICE)


def costs_of(pool: Pool, rows: list[int]) -> list[float | None]:
    return [TOY.cost(pool.config(row)) for row in rows]


def dense_improvement(pool: Pool, rows: list[int], values: list[float | None]) -> np.ndarray:
    """Expected improvement by the textbook: one solve with the whole covariance, lengths of 1."""
    known = np.asarray(rows)
    costs = standardised(values)
    whole = correlation(pool.squared(np.arange(len(pool)), known).sum(axis=0).astype(np.float64))
    covariance = correlation(pool.squared(known, known).sum(axis=0).astype(np.float64))
    covariance += gp.NOISE * np.eye(len(known))
    told = len(costs)
    inverse = np.linalg.inv(covariance[:told, :told])
    spread = math.sqrt((costs @ inverse @ costs + 2.0) / (told + 2.0))
    mean = whole[:, :told] @ inverse @ costs
    explained = np.einsum("ij,jk,ik->i", whole, np.linalg.inv(covariance), whole)
    deviation = spread * np.sqrt(np.maximum(1.0 - explained, 1e-6))
    gain = (costs.min() - mean) / deviation
    normal = np.asarray([0.5 * math.erfc(-g / math.sqrt(2.0)) for g in gain])
    return deviation * (gain * normal + np.exp(-0.5 * gain**2) / math.sqrt(2.0 * math.pi))


@pytest.mark.parametrize("pending", [0, 2])
def test_the_grown_posterior_is_that_of_one_solve(pool: Pool, pending: int) -> None:
    rows = [3, 200, 411, 620, 77][: 3 + pending]
    values = costs_of(pool, rows[:3])
    model = Surrogate(pool, np.arange(len(pool)))
    model.learn(rows[:2], values[:2])
    model.learn(rows, values)
    expected = dense_improvement(pool, rows, values)
    np.testing.assert_allclose(model.improvements(), expected, rtol=2e-3, atol=1e-5)
    some = np.asarray([0, 5, 600])
    np.testing.assert_allclose(model.improvements_of(some), expected[some], rtol=2e-3, atol=1e-5)


def test_rows_in_flight_are_not_expected_to_improve(pool: Pool) -> None:
    told = [3, 200, 411]
    model = Surrogate(pool, np.arange(len(pool)))
    model.learn(told, costs_of(pool, told))
    first = int(model.improvements().argmax())
    before = model.improvements()[first]
    model.learn([*told, first], costs_of(pool, told))
    assert model.improvements()[first] < 0.5 * before


def test_the_fit_does_not_depend_on_how_many_come_at_once(pool: Pool) -> None:
    rows = [int(row) for row in np.random.default_rng(0).choice(len(pool), 30, replace=False)]
    values = costs_of(pool, rows)
    steadily, at_once = (Surrogate(pool, np.arange(len(pool))) for _ in range(2))
    for count in range(3, 31):
        steadily.learn(rows[:count], values[:count])
    at_once.learn(rows, values)
    np.testing.assert_array_equal(steadily.improvements(), at_once.improvements())


def test_the_gradient_of_the_fit_is_that_of_its_loss(pool: Pool) -> None:
    rows = np.random.default_rng(1).choice(len(pool), 20, replace=False)
    squared = pool.squared(rows, rows).astype(np.float64)
    costs = standardised(costs_of(pool, rows.tolist()))
    here = Scales.start(len(pool.knobs)).logs + np.asarray([0.3, -0.2, 0.1, 0.4, -0.5, 0.2])
    _, slope = gp._loss(squared, costs, here)
    for index in range(len(here)):
        step = np.zeros(len(here))
        step[index] = 1e-5
        difference = gp._loss(squared, costs, here + step)[0] - gp._loss(squared, costs, here - step)[0]
        assert slope[index] == pytest.approx(difference / 2e-5, rel=1e-4, abs=1e-6)


def test_a_knob_without_effect_gets_a_longer_length_than_one_that_decides(pool: Pool) -> None:
    rows = np.random.default_rng(2).choice(len(pool), 60, replace=False)
    tile = pool.points[rows, 0].astype(float)
    scales = fitted(
        pool.squared(rows, rows).astype(np.float64), (tile - tile.mean()) / tile.std(), Scales.start(5)
    )
    assert scales.logs[0] < scales.logs[4]


def test_costs_are_standardised_and_failures_count_as_the_slowest() -> None:
    costs = standardised([100.0, None, 120.0, 3000.0])
    assert costs.mean() == pytest.approx(0.0)
    assert costs.std() == pytest.approx(1.0)
    assert costs[1] == costs[3] == costs.max()
    assert costs.argmin() == 0
    assert standardised([5.0, 5.0]).tolist() == [0.0, 0.0]


def test_all_failures_can_be_learned_before_the_first_time() -> None:
    pool = Pool.of(TINY, PROBLEM, DEVICE)
    model = Surrogate(pool, np.arange(len(pool)))
    values: list[float | None] = [None] * 7 + [50.0, 60.0]
    model.learn(list(range(9)), values)
    assert np.isfinite(model.improvements()).all()
