"""The model of the staged search: its posterior against dense algebra, its fit against differences."""

import math

import numpy as np
import pytest
from toy_family import DEVICE, PROBLEM, TINY, TOY

from kernels.base.knobs import Knob
from tuner.search import gp
from tuner.search.gp import Floats, Scales, Surrogate, correlation, features_of, fitted, standardised
from tuner.search.pool import Pool


@pytest.fixture
def pool() -> Pool:
    return Pool.of(TOY, PROBLEM, DEVICE)


def costs_of(pool: Pool, rows: list[int]) -> list[float | None]:
    return [TOY.cost(pool.config(row)) for row in rows]


def squared_of(pool: Pool, rows: np.ndarray, others: np.ndarray) -> Floats:
    """(features, rows, others) squared distances, written pair by pair."""
    found = np.empty((len(features_of(pool.knobs)), len(rows), len(others)))
    for index, one in enumerate(features_of(pool.knobs)):
        for i, row in enumerate(rows):
            for j, other in enumerate(others):
                found[index, i, j] = one.squares[pool.points[row, one.knob], pool.points[other, one.knob]]
    return found


def weighed(pool: Pool, rows: np.ndarray, others: np.ndarray) -> Floats:
    """Squared distances at the centre of the priors."""
    return np.tensordot(Scales.start(features_of(pool.knobs)).weights, squared_of(pool, rows, others), 1)


def dense_improvement(pool: Pool, rows: list[int], values: list[float | None]) -> np.ndarray:
    """Expected improvement by the textbook: one solve with the whole covariance, at the priors' centre."""
    known = np.asarray(rows)
    costs = standardised(values)
    whole = correlation(weighed(pool, np.arange(len(pool)), known))
    covariance = correlation(weighed(pool, known, known))
    covariance += gp.NOISE * np.eye(len(known))
    told = len(costs)
    inverse = np.linalg.inv(covariance[:told, :told])
    spread = math.sqrt((costs @ inverse @ costs + 2.0) / (told + 2.0))
    mean = whole[:, :told] @ inverse @ costs
    explained = np.einsum("ij,jk,ik->i", whole, np.linalg.inv(covariance), whole)
    deviation = gp.WIDENED * spread * np.sqrt(np.maximum(1.0 - explained, 1e-6))
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


def test_results_out_of_the_order_of_asks_give_the_posterior_of_one_solve(pool: Pool) -> None:
    values = costs_of(pool, [3, 200, 411, 77, 620])
    model = Surrogate(pool, np.arange(len(pool)))
    model.learn([3, 200, 411, 620, 77], values[:3])
    model.learn([3, 200, 411, 77, 620, 500], values[:4])
    model.learn([3, 200, 411, 77, 620], values)
    expected = dense_improvement(pool, [3, 200, 411, 77, 620], values)
    np.testing.assert_allclose(model.improvements(), expected, rtol=2e-3, atol=1e-5)
    at_once = Surrogate(pool, np.arange(len(pool)))
    at_once.learn([3, 200, 411, 77, 620], values)
    np.testing.assert_array_equal(model.improvements(), at_once.improvements())


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


def test_a_fit_follows_however_many_rows_are_pending(pool: Pool) -> None:
    """As on a job with 12 helpers."""
    rows = [int(row) for row in np.random.default_rng(0).choice(len(pool), 60, replace=False)]
    values, crowded, at_once = costs_of(pool, rows), *(Surrogate(pool, np.arange(len(pool))) for _ in "12")
    for known in range(8, 46):
        crowded.learn(rows[: known + 15], values[:known])
    at_once.learn(rows, values[:45])
    np.testing.assert_array_equal(crowded.improvements(), at_once.improvements())


def test_the_gradient_of_the_fit_is_that_of_its_loss(pool: Pool) -> None:
    rows = np.random.default_rng(1).choice(len(pool), 20, replace=False)
    squared = squared_of(pool, rows, rows)
    costs = standardised(costs_of(pool, rows.tolist()))
    centre = Scales.start(features_of(pool.knobs)).logs
    here = centre + np.random.default_rng(2).normal(0.0, 0.3, len(centre))
    _, slope = gp._loss(squared, costs, here, centre)
    for index in range(len(here)):
        step = np.zeros(len(here))
        step[index] = 1e-5
        above, below = (gp._loss(squared, costs, here + sign * step, centre)[0] for sign in (1, -1))
        assert slope[index] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-6)


def test_a_knob_without_effect_gets_a_longer_length_than_one_that_decides(pool: Pool) -> None:
    rows = np.random.default_rng(2).choice(len(pool), 60, replace=False)
    tile = pool.points[rows, 0].astype(float)
    features = features_of(pool.knobs)
    start = Scales.start(features)
    scales = fitted(squared_of(pool, rows, rows), (tile - tile.mean()) / tile.std(), start, start)
    lengths = [log for log, one in zip(scales.logs[:-1], features, strict=True) if one.prior == 0.0]
    assert lengths[0] < lengths[4]


@pytest.mark.parametrize("ordered", [True, False])
def test_the_fit_learns_whether_the_order_of_a_knob_matters(ordered: bool) -> None:
    values = np.arange(8) if ordered else np.random.default_rng(4).permutation(8)
    rows = np.repeat(np.arange(8), 3)
    apart = np.square((rows[:, None] - rows[None, :]) / np.float64(7))
    features = features_of([Knob("tile", tuple(2**power for power in range(8)), "")])
    assert [one.prior for one in features] == [0.0, gp.FURTHER_LOG]
    start, costs = Scales.start(features), values[rows].astype(float)
    squared = np.stack([apart, np.sign(apart)])
    logs = fitted(squared, (costs - costs.mean()) / costs.std(), start, start).logs
    near, differ = logs[0], logs[1] - gp.FURTHER_LOG
    assert (near < differ) == ordered


def test_a_knob_of_names_or_of_two_numbers_has_one_feature() -> None:
    knobs = Knob("order", ("a", "b", "c"), ""), Knob("stages", (1, 3), "")
    assert [one.knob for one in features_of(knobs)] == [0, 1]


def test_a_knob_with_some_powers_of_two_has_a_feature_of_them() -> None:
    features = features_of([Knob("threads", (16, 32, 48, 64), "")])
    assert [one.prior for one in features] == [0.0, gp.FURTHER_LOG, gp.FURTHER_LOG]
    assert features[2].squares.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]]
    assert len(features_of([Knob("count", (0, 3, 5), "")])) == 2


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
