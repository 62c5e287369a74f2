"""The enumerated valid set: look-ups, projections, neighbours."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_family import DEVICE, PROBLEM, TOY

from kernels.base.knobs import Knob
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tuner.search.pool import Pool

KNOBS = (Knob("size", (1, 2, 4, 8, 16), ""), Knob("order", ("x", "y", "z"), ""), Knob("flag", (0, 1), ""))
POINTS = np.array(list(itertools.product(range(5), range(3), range(2))), dtype=np.int16)


def grid_pool(keep: np.ndarray | slice = slice(None)) -> Pool:
    return Pool("grid", KNOBS, POINTS[keep])


def naive_distance(a: np.ndarray, b: np.ndarray) -> float:
    return abs(int(a[0]) - int(b[0])) / 4 + (a[1] != b[1]) + abs(int(a[2]) - int(b[2]))


def test_a_pool_holds_exactly_the_valid_configs() -> None:
    pool = Pool.of(TOY, PROBLEM, DEVICE)
    every = itertools.product(*(knob.values for knob in TOY.knobs))
    names = [knob.name for knob in TOY.knobs]
    configs = (Config.of("toy", dict(zip(names, values, strict=True))) for values in every)
    valid = {config for config in configs if TOY.why_invalid(config, PROBLEM, DEVICE) is None}
    assert {pool.config(row) for row in range(len(pool))} == valid
    # (tile, stages) with a product of at most 256: 5 + 5 + 5 + 4 + 2 + 2; (order, split): 4 + 4 + 1
    assert len(pool) == len(valid) == 23 * 9 * 3


def test_an_unsupported_problem_has_an_empty_pool() -> None:
    pool = Pool.of(TOY, GemmProblem(255, 256, 256), DEVICE)
    assert (len(pool), pool.free) == (0, 0)
    assert pool.index_of(TOY.make(16, 1)) is None


def test_index_of_inverts_config() -> None:
    pool = Pool.of(TOY, PROBLEM, DEVICE)
    assert [pool.index_of(pool.config(row)) for row in range(len(pool))] == list(range(len(pool)))


@pytest.mark.parametrize(
    "config",
    [
        TOY.make(128, 3),
        TOY.make(16, 8),
        TOY.make(17, 1),
        Config.of("other", dict(TOY.make(16, 1).knobs)),
        Config.of("toy", {"tile": 16}),
    ],
    ids=["breaks a rule", "not searched", "not legal", "other family", "knobs missing"],
)
def test_index_of_foreign_configs_is_none(config: Config) -> None:
    assert Pool.of(TOY, PROBLEM, DEVICE).index_of(config) is None


def test_points_in_any_order_are_found() -> None:
    shuffled = POINTS[np.random.default_rng(0).permutation(len(POINTS))]
    pool = Pool("grid", KNOBS, shuffled)
    assert [pool.find(point) for point in POINTS.tolist()] == list(range(30))


def test_nearest_pinned() -> None:
    # from (0, 0, 0): (4, 0, 0) is 4/4 = 1 away, (3, 0, 0) 3/4, (0, 1, 0) 1, (2, 1, 0) 1.5
    rng = np.random.default_rng(0)
    pool = Pool("grid", KNOBS, np.array([(4, 0, 0), (3, 0, 0), (0, 1, 0), (2, 1, 0)], dtype=np.int16))
    order = []
    for _ in range(4):
        row = pool.nearest((0, 0, 0), rng)
        pool.take(row)
        order.append(tuple(pool.points[row].tolist()))
    assert order[0] == (3, 0, 0)
    assert set(order[1:3]) == {(4, 0, 0), (0, 1, 0)}
    assert order[3] == (2, 1, 0)


def test_ties_of_nearest_are_broken_by_lot() -> None:
    pool = grid_pool()
    centre = pool.find((2, 1, 0))
    assert centre is not None
    pool.take(centre)
    drawn = {pool.nearest((2, 1, 0), np.random.default_rng(seed)) for seed in range(40)}
    assert {tuple(pool.points[row].tolist()) for row in drawn} == {(1, 1, 0), (3, 1, 0)}


@settings(deadline=None)
@given(keep=st.sets(st.integers(0, 29), min_size=1), target=st.integers(0, 29), data=st.data())
def test_nearest_agrees_with_the_naive_search(keep: set[int], target: int, data: st.DataObject) -> None:
    pool = grid_pool(np.array(sorted(keep)))
    taken = data.draw(st.sets(st.integers(0, len(pool) - 1), max_size=len(pool) - 1))
    for row in taken:
        pool.take(row)
    chosen = pool.nearest(POINTS[target].tolist(), np.random.default_rng(1))
    free = [row for row in range(len(pool)) if row not in taken]
    assert chosen in free
    best = min(naive_distance(pool.points[row], POINTS[target]) for row in free)
    assert naive_distance(pool.points[chosen], POINTS[target]) == pytest.approx(best)


@settings(deadline=None)
@given(keep=st.sets(st.integers(0, 29), min_size=1), data=st.data())
def test_neighbours_are_the_free_points_one_knob_away(keep: set[int], data: st.DataObject) -> None:
    pool = grid_pool(np.array(sorted(keep)))
    row = data.draw(st.integers(0, len(pool) - 1))
    taken = data.draw(st.sets(st.integers(0, len(pool) - 1)))
    for one in taken:
        pool.take(one)
    hamming = (pool.points != pool.points[row]).sum(axis=1)
    expected = [one for one in range(len(pool)) if hamming[one] == 1 and one not in taken]
    assert sorted(pool.neighbours(row).tolist()) == expected


def test_an_exhausted_pool_says_so() -> None:
    pool, rng = grid_pool(), np.random.default_rng(0)
    for _ in range(30):
        pool.take(pool.random(rng))
    assert pool.free == 0
    with pytest.raises(IndexError, match="every one of the 30 valid configs of grid"):
        pool.random(rng)
    with pytest.raises(IndexError, match="every one"):
        pool.nearest((0, 0, 0), rng)


def test_a_space_too_large_to_number_is_refused() -> None:
    knobs = [Knob(f"k{i}", tuple(range(100)), "") for i in range(10)]
    with pytest.raises(InvalidProblem, match="search fewer values"):
        Pool("huge", knobs, np.zeros((1, 10), dtype=np.int16))


@pytest.mark.parametrize(("points", "limit_ms"), [(20_000, 5.0), (500_000, 200.0)])
def test_a_projection_is_fast(points: int, limit_ms: float) -> None:
    rng = np.random.default_rng(0)
    knobs = [Knob(f"k{i}", tuple(range(4)), "") for i in range(12)]
    codes = rng.choice(4**12, size=points, replace=False)
    table = (codes[:, None] // 4 ** np.arange(12) % 4).astype(np.int16)
    pool = Pool("big", knobs, table)
    spent = []
    for _ in range(7):
        target = rng.integers(0, 4, size=12).tolist()
        start = time.process_time()
        pool.take(pool.nearest(target, rng))
        spent.append(time.process_time() - start)
    assert min(spent) * 1e3 < limit_ms
