"""A Gaussian process over the candidates of a pool: what a config is likely to cost, and how sure that is.

Two configs are as alike as a Matern-5/2 kernel says of sum over the knobs of (d / length)^2, where d is
their distance along a knob (:attr:`tuner.pool.Pool.apart`). The posterior over all candidates is kept
and grows by one row of the inverse Cholesky factor a config, so that an ask costs one pass over what is
known (Rasmussen & Williams 2006, ch. 2; expected improvement: Jones et al. 1998).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from tuner.lengths import Floats, Scales, correlation, fitted
from tuner.pool import Distances, Indices, Pool

GROWTH = 1.5
FIRST_FIT = 6
_TINY = 1e-6
_GAINS = np.linspace(-6.0, 6.0, 1201)


def _standard_improvement(gain: float) -> float:
    """E[max(0, gain + z)] of a standard normal z."""
    density = math.exp(-0.5 * gain * gain) / math.sqrt(2.0 * math.pi)
    return gain * 0.5 * math.erfc(-gain / math.sqrt(2.0)) + density


_IMPROVEMENTS = np.asarray([_standard_improvement(float(gain)) for gain in _GAINS])


class Surrogate:
    """What the costs of some rows of a pool say about the others.

    Rows come in one order that only grows. Those whose cost is not known yet lower the uncertainty
    around them, so that configs in flight are not crowded (Desautels et al. 2014).

    Attributes:
        candidates: the rows that :meth:`improvements` tells of.
    """

    def __init__(self, pool: Pool, candidates: Indices) -> None:
        self.candidates = candidates
        self._pool = pool
        # NOTE: of the type that NumPy indexes with; any other one is converted at each use.
        self._columns = np.ascontiguousarray(pool.points[candidates].T, dtype=np.intp)
        self._scales = Scales.start(len(pool.knobs))
        self._next_fit = FIRST_FIT
        self._rows: list[int] = []
        self._inverse = np.zeros((0, 0))
        self._solved: Distances = np.zeros((0, len(candidates)), dtype=np.float32)
        self._explained: Distances = np.zeros(len(candidates), dtype=np.float32)
        self._white: Floats = np.zeros(0)
        self._lowest = 0.0
        self._spread = 1.0

    def learn(self, rows: Sequence[int], values: Sequence[float | None]) -> None:
        """Know ``rows``, of which the first ones took ``values`` microseconds, None where they failed.

        The lengths are fitted whenever half as many values again are known, always at the same numbers
        of values, however many come at once. One value at least must be a number.
        """
        known = len(values)
        while known >= self._next_fit:
            self._fit(rows[: self._next_fit], values[: self._next_fit])
            self._next_fit = int(self._next_fit * GROWTH) + 1
        for row in rows[len(self._rows) :]:
            self._extend(row)
        costs = standardised(values)
        self._white = self._inverse[:known, :known] @ costs
        self._lowest = float(costs.min())
        self._spread = math.sqrt((float(self._white @ self._white) + 2.0) / (known + 2.0))

    def improvements(self) -> Distances:
        """The expected improvement of each candidate on the lowest cost known."""
        mean = self._white.astype(np.float32) @ self._solved[: len(self._white)]
        return self._expected(mean, self._explained)

    def improvements_of(self, rows: Indices) -> Distances:
        """The same of any rows of the pool."""
        size = len(self._rows)
        alike = self._alike(np.asarray(self._rows), rows)
        solved = self._inverse[:size, :size].astype(np.float32) @ alike
        mean = self._white.astype(np.float32) @ solved[: len(self._white)]
        return self._expected(mean, np.square(solved).sum(axis=0))

    def _expected(self, mean: Distances, explained: Distances) -> Distances:
        deviation = self._spread * np.sqrt(np.maximum(1.0 - explained, _TINY))
        improvement = np.interp((self._lowest - mean) / deviation, _GAINS, _IMPROVEMENTS)
        expected: Distances = (deviation * improvement).astype(np.float32)
        return expected

    def _fit(self, rows: Sequence[int], values: Sequence[float | None]) -> None:
        self._rows, self._explained[:] = [], 0.0
        if any(value is not None for value in values):
            of = np.asarray(rows)
            squared = self._pool.squared(of, of).astype(np.float64)
            self._scales = fitted(squared, standardised(values), self._scales)

    def _extend(self, row: int) -> None:
        """One more row of the factor's inverse, and of the candidates' part of the solution."""
        size = len(self._rows)
        if size == len(self._inverse):
            self._make_room(max(32, 2 * size))
        inverse, here = self._inverse[:size, :size], np.asarray([row])
        left = inverse @ self._alike(np.asarray(self._rows, dtype=np.int64), here)[:, 0].astype(np.float64)
        pivot = math.sqrt(max(1.0 + self._scales.noise - float(left @ left), _TINY))
        self._inverse[size, :size], self._inverse[size, size] = -(left @ inverse) / pivot, 1.0 / pivot
        alike = self._alike_candidates(row)
        self._solved[size] = (alike - left.astype(np.float32) @ self._solved[:size]) / np.float32(pivot)
        self._explained += np.square(self._solved[size])
        self._rows.append(row)

    def _alike(self, rows: Indices, others: Indices) -> Distances:
        squared = np.tensordot(self._scales.weights.astype(np.float32), self._pool.squared(rows, others), 1)
        return correlation(squared)

    def _alike_candidates(self, row: int) -> Distances:
        squared = np.zeros(len(self.candidates), dtype=np.float32)
        weights = self._scales.weights.astype(np.float32)
        for knob, value in enumerate(self._pool.points[row]):
            squared += (weights[knob] * self._pool.squares[knob][value])[self._columns[knob]]
        return correlation(squared)

    def _make_room(self, size: int) -> None:
        inverse, solved = self._inverse, self._solved
        self._inverse = np.zeros((size, size))
        self._inverse[: len(inverse), : len(inverse)] = inverse
        self._solved = np.zeros((size, len(self.candidates)), dtype=np.float32)
        self._solved[: len(solved)] = solved


def standardised(values: Sequence[float | None]) -> Floats:
    """Costs of mean 0 and variance 1 from times: half their logarithm, half their rank.

    A failure counts as the slowest time.

    Times reach from the optimum to a hundred times it. Ranks keep the slow ones from deciding what the
    fit explains, logarithms keep the distances between the fast ones.
    """
    worst = max(value for value in values if value is not None)
    times = np.asarray([worst if value is None else value for value in values])
    below = (times[None, :] < times[:, None]).sum(axis=1)
    equal = (times[None, :] == times[:, None]).sum(axis=1)
    quantile = NormalDist().inv_cdf
    ranks = np.asarray([quantile(float(share)) for share in (below + 0.5 * equal) / len(times)])
    return _scaled(_scaled(np.log(times)) + _scaled(ranks))


def _scaled(values: Floats) -> Floats:
    deviation = float(values.std())
    centred: Floats = values - values.mean()
    return centred / deviation if deviation > 0.0 else centred
