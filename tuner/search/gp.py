"""Gaussian-process surrogate of the costs of configs, with fitted length scales for each knob.

A knob of more than two numbers has two length scales, so that the fit learns whether its order matters: one
of the distance between two values, and one of whether they differ at all, as for a knob of names. Where only
some of the numbers are powers of two, a third one is of whether just one of two values is: a kernel divides
by its powers of two faster, and they fill its warps.

The fit maximises the likelihood times log-normal priors: a length of 1 (the whole range of a knob), e for the
further ones of a knob, and a noise of 1 % of the variance. It uses only the signs of the gradient (Rprop,
Riedmiller & Braun 1993). Wide priors do not help: with a few dozen configs known the likelihood is flat.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kernels.base.knobs import Knob
from tilewright.schema.codec import KnobValue
from tuner.search.pool import Distances, Indices, Pool, distances

Floats = npt.NDArray[np.float64]
A = TypeVar("A", Floats, npt.NDArray[np.float32])

LENGTH_DEVIATION = 0.5
FURTHER_LOG = 1.0
NOISE = 0.01
NOISE_DEVIATION = 1.5
_STEPS = 15
_FIRST_STEP = 0.2
_STEP_BOUNDS = (1e-3, 0.6)
_LEAST = np.log(1e-5)


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """A way in which two configs differ by one knob; each has a length scale.

    Attributes:
        knob: position of the knob.
        squares: (values, values) squared distances.
        prior: centre of the prior of the logarithm of its length scale.
    """

    knob: int
    squares: Distances
    prior: float = 0.0


def features_of(knobs: Sequence[Knob]) -> tuple[Feature, ...]:
    """The features of knobs: one of a knob of names, up to three of a knob of numbers."""
    found = []
    for index, knob in enumerate(knobs):
        square = np.square(distances(knob))
        found.append(Feature(index, square))
        differ = np.sign(square)
        if not np.array_equal(differ, square):
            found.append(Feature(index, differ, FURTHER_LOG))
            powers = np.asarray([_is_power_of_two(value) for value in knob.values])
            if powers.any() and not powers.all():
                one_is = (powers[:, None] != powers[None, :]).astype(np.float32)
                found.append(Feature(index, one_is, FURTHER_LOG))
    return tuple(found)


def _is_power_of_two(value: KnobValue) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """Logarithms of the length scale of each feature and of the noise, as one vector.

    Attributes:
        logs: (features + 1,) natural logarithms; the last one is of the noise, a fraction of the variance.
    """

    logs: Floats

    @classmethod
    def start(cls, features: Sequence[Feature]) -> Scales:
        """The centre of the priors."""
        return cls(np.asarray([*(one.prior for one in features), math.log(NOISE)]))

    @property
    def weights(self) -> Floats:
        """(features,) factors of the squared distances."""
        weights: Floats = np.exp(-2.0 * self.logs[:-1])
        return weights

    @property
    def noise(self) -> float:
        """The fraction of the variance that no distance explains."""
        return math.exp(float(self.logs[-1]))


def correlation(squared: A) -> A:
    """The Matern-5/2 correlation at squared distances, in their precision."""
    root = np.sqrt(5.0 * squared)
    alike: A = (1.0 + root + root * root / 3.0) * np.exp(-root)
    return alike


def fitted(squared: Floats, costs: Floats, start: Scales, centre: Scales) -> Scales:
    """The best scales on an ascent from ``start``.

    Args:
        squared: (features, n, n) squared distances of n configs by each feature.
        costs: (n,) costs of mean 0.
        centre: the centre of the priors.
    """
    here, step = start.logs, np.full(len(start.logs), _FIRST_STEP)
    best, lowest, before = here, math.inf, np.zeros(len(here))
    for _ in range(_STEPS):
        loss, slope = _loss(squared, costs, here, centre.logs)
        if loss < lowest:
            best, lowest = here, loss
        agree = np.sign(slope * before)
        step = np.clip(step * np.select([agree > 0, agree < 0], [1.3, 0.5], 1.0), *_STEP_BOUNDS)
        here, before = np.maximum(here - np.sign(slope) * step, _LEAST), slope
    return Scales(best)


def _loss(squared: Floats, costs: Floats, logs: Floats, centre: Floats) -> tuple[float, Floats]:
    """The negative log posterior, with the variance profiled out, and its gradient by the logarithms."""
    scales, count = Scales(logs), len(costs)
    distance = np.tensordot(scales.weights, squared, 1)
    covariance = correlation(distance) + scales.noise * np.eye(count)
    inverse = np.linalg.inv(covariance)
    weighed = inverse @ costs
    variance = max(float(costs @ weighed) / count, 1e-9)
    _, volume = np.linalg.slogdet(covariance)
    outer = 0.5 * (inverse - np.outer(weighed, weighed) / variance)
    root = np.sqrt(5.0 * distance)
    # The derivative of Matern-5/2 by the squared distance is -5/6 (1 + root) exp(-root).
    pull = outer * (5.0 / 3.0) * (1.0 + root) * np.exp(-root)
    slope = np.append(scales.weights * np.tensordot(squared, pull, 2), scales.noise * float(np.trace(outer)))
    deviations = np.append(np.full(len(squared), LENGTH_DEVIATION), NOISE_DEVIATION)
    away = (logs - centre) / deviations
    loss = 0.5 * count * math.log(variance) + 0.5 * float(volume) + 0.5 * float(away @ away)
    return loss, slope + away / deviations


GROWTH = 1.2
FIRST_FIT = 6
WIDENED = 2.0
_TINY = 1e-6
_GAINS = np.linspace(-6.0, 6.0, 1201)


def _standard_improvement(gain: float) -> float:
    """E[max(0, gain + z)] of a standard normal z."""
    density = math.exp(-0.5 * gain * gain) / math.sqrt(2.0 * math.pi)
    return gain * 0.5 * math.erfc(-gain / math.sqrt(2.0)) + density


_IMPROVEMENTS = np.asarray([_standard_improvement(float(gain)) for gain in _GAINS])


class Surrogate:
    """A model of the costs of a pool's rows, given the costs of some.

    The rows with a cost come in the order of results, then the pending ones, whose cost is not known yet.
    These lower the uncertainty around them, so that the search does not crowd configs in flight (Desautels et
    al. 2014).

    Attributes:
        candidates: the rows whose improvements :meth:`improvements` returns.
    """

    def __init__(self, pool: Pool, candidates: Indices) -> None:
        self.candidates = candidates
        self._pool = pool
        # NOTE: the type that NumPy indexes with; any other one is converted at each use.
        self._columns = np.ascontiguousarray(pool.points[candidates].T, dtype=np.intp)
        self._features = features_of(pool.knobs)
        self._scales = self._centre = Scales.start(self._features)
        self._tables = self._weighed()
        self._next_fit = FIRST_FIT
        self._rows: list[int] = []
        self._inverse = np.zeros((0, 0))
        self._solved: Distances = np.zeros((0, len(candidates)), dtype=np.float32)
        self._explained: Distances = np.zeros(len(candidates), dtype=np.float32)
        self._known = 0  # rows that are in _explained_by_known
        self._explained_by_known = np.zeros_like(self._explained)
        self._white: Floats = np.zeros(0)
        self._lowest = 0.0
        self._spread = 1.0
        self._log_time = 1.0

    def learn(self, rows: Sequence[int], values: Sequence[float | None]) -> None:
        """Learn ``rows``, of which the first have ``values`` in microseconds; None for those that failed.

        The length scales are fitted each time the number of values has grown by a fifth, always at the same
        numbers of values, however many are new. At least one value must be a number.
        """
        known, fitted_rows = len(values), 0
        while known >= self._next_fit:
            fitted_rows = self._next_fit
            self._fit(rows[:fitted_rows], values[:fitted_rows])
            self._next_fit = int(self._next_fit * GROWTH) + 1
        if fitted_rows:
            # NOTE: the rows of the fit alone, so that rounding does not depend on how many come at once.
            self._begin(rows[:fitted_rows])
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self._rows, rows, strict=False))
        self._rows = [row for row, _ in same]
        for row in rows[len(self._rows) :]:
            self._extend(row)
        self._explain(known)
        costs = standardised(values)
        self._white = self._inverse[:known, :known] @ costs
        self._lowest = float(costs.min())
        self._log_time = log_time_of_a_cost(values)
        self._spread = math.sqrt((float(self._white @ self._white) + 2.0) / (known + 2.0))

    @property
    def known(self) -> int:
        """The number of rows whose values it has learned."""
        return self._known

    def improvements(self, ahead: float = 0.0) -> Distances:
        """The expected improvement of each candidate over a cost that lies ``ahead`` of the lowest known one.

        Deviations are doubled: those of the model leave out that its length scales are estimates.
        """
        mean = self._white.astype(np.float32) @ self._solved[: len(self._white)]
        return self._expected(mean, self._explained, ahead)

    def improvements_of(self, rows: Indices, ahead: float = 0.0) -> Distances:
        """As :meth:`improvements`, of any rows of the pool."""
        size = len(self._rows)
        alike = self._correlation_of(np.asarray(self._rows), rows)
        solved = self._inverse[:size, :size].astype(np.float32) @ alike
        mean = self._white.astype(np.float32) @ solved[: len(self._white)]
        return self._expected(mean, np.square(solved).sum(axis=0), ahead)

    def expected_gain(self, lead: float, others: Indices) -> float:
        """The largest expected gain of a free candidate or of free ``others``, as a fraction of a time.

        Args:
            lead: logarithm of the lowest known time over the time that is to be improved on.
        """
        if not self._log_time:  # all times are one
            return 0.0
        ahead = lead / self._log_time if lead else 0.0
        free = ~self._pool.taken(self.candidates)
        gains = np.append(self.improvements(ahead)[free], self.improvements_of(others, ahead))
        return self._log_time * float(gains.max(initial=0.0))

    def _expected(self, mean: Distances, explained: Distances, ahead: float) -> Distances:
        deviation = WIDENED * self._spread * np.sqrt(np.maximum(1.0 - explained, _TINY))
        improvement = np.interp((self._lowest - ahead - mean) / deviation, _GAINS, _IMPROVEMENTS)
        expected: Distances = (deviation * improvement).astype(np.float32)
        return expected

    def _fit(self, rows: Sequence[int], values: Sequence[float | None]) -> None:
        if any(value is not None for value in values):
            squared = self._squared(np.asarray(rows)).astype(np.float64)
            self._scales = fitted(squared, standardised(values), self._scales, self._centre)
            self._tables = self._weighed()

    def _begin(self, rows: Sequence[int]) -> None:
        """Begin anew with some rows, added all at once."""
        of, size = np.asarray(rows), len(rows)
        # NOTE: pending rows may have taken more room than twice that of the rows of the fit.
        self._make_room(max(32, 2 * size, len(self._inverse)))
        covariance = self._correlation_of(of, of).astype(np.float64) + self._scales.noise * np.eye(size)
        self._inverse[:size, :size] = np.linalg.inv(np.linalg.cholesky(covariance))
        apart = np.zeros((size, len(self.candidates)), dtype=np.float32)
        for table, column, values in zip(self._tables, self._columns, self._pool.points[of].T, strict=True):
            apart += table[values][:, column]
        self._solved[:size] = self._inverse[:size, :size].astype(np.float32) @ correlation(apart)
        self._explained_by_known[:] = np.square(self._solved[:size]).sum(axis=0)
        self._rows, self._known = list(rows), size

    def _extend(self, row: int) -> None:
        """Add a row to the factor's inverse and to the candidates' part of the solution."""
        size = len(self._rows)
        if size == len(self._inverse):
            self._make_room(max(32, 2 * size))
        inverse, here = self._inverse[:size, :size], np.asarray([row])
        alike = self._correlation_of(np.asarray(self._rows, dtype=np.int64), here)[:, 0]
        left = inverse @ alike.astype(np.float64)
        pivot = math.sqrt(max(1.0 + self._scales.noise - float(left @ left), _TINY))
        self._inverse[size, :size], self._inverse[size, size] = -(left @ inverse) / pivot, 1.0 / pivot
        alike = self._correlation_with_candidates(row)
        self._solved[size] = (alike - left.astype(np.float32) @ self._solved[:size]) / np.float32(pivot)
        self._rows.append(row)

    def _explain(self, known: int) -> None:
        """Add up the fraction of each candidate's variance that the rows explain."""
        # NOTE: one by one, so that the sum is the same however many rows come at once.
        for row in range(self._known, known):
            self._explained_by_known += np.square(self._solved[row])
        self._known, self._explained = known, self._explained_by_known.copy()
        for row in range(known, len(self._rows)):
            self._explained += np.square(self._solved[row])

    def _weighed(self) -> list[Distances]:
        """For each knob, the (values, values) squared distances over the squared length scales."""
        tables = [np.zeros_like(square) for square in self._pool.squares]
        for one, weight in zip(self._features, self._scales.weights.astype(np.float32), strict=True):
            tables[one.knob] += weight * one.squares
        return tables

    def _correlation_of(self, rows: Indices, others: Indices) -> Distances:
        points = self._pool.points
        apart = np.zeros((len(rows), len(others)), dtype=np.float32)
        for table, values, of_others in zip(self._tables, points[rows].T, points[others].T, strict=True):
            apart += table[values][:, of_others]
        return correlation(apart)

    def _squared(self, rows: Indices) -> Distances:
        """(features, rows, rows) squared distances by each feature."""
        points = self._pool.points[rows]
        return np.stack(
            [one.squares[np.ix_(points[:, one.knob], points[:, one.knob])] for one in self._features]
        )

    def _correlation_with_candidates(self, row: int) -> Distances:
        apart = np.zeros(len(self.candidates), dtype=np.float32)
        for table, value, column in zip(self._tables, self._pool.points[row], self._columns, strict=True):
            apart += table[value][column]
        return correlation(apart)

    def _make_room(self, size: int) -> None:
        inverse, solved = self._inverse, self._solved
        self._inverse = np.zeros((size, size))
        self._inverse[: len(inverse), : len(inverse)] = inverse
        self._solved = np.zeros((size, len(self.candidates)), dtype=np.float32)
        self._solved[: len(solved)] = solved


def standardised(values: Sequence[float | None]) -> Floats:
    """Costs of mean 0 and variance 1 from times, as the mean of their logarithm and their rank.

    A failure counts as the slowest time. Times range from the optimum to a hundred times the optimum. Ranks
    keep the slow ones from dominating the fit; logarithms keep the distances between the fast ones.
    """
    times = _times(values)
    below = (times[None, :] < times[:, None]).sum(axis=1)
    equal = (times[None, :] == times[:, None]).sum(axis=1)
    quantile = NormalDist().inv_cdf
    ranks = np.asarray([quantile(float(share)) for share in (below + 0.5 * equal) / len(times)])
    return _scaled(_scaled(np.log(times)) + _scaled(ranks))


def log_time_of_a_cost(values: Sequence[float | None]) -> float:
    """By how much the logarithm of a time below all others falls for a unit of :func:`standardised`, at most.

    Its rank stays the lowest one, so its cost falls by its logarithm alone. The sum of two quantities of
    variance 1 has a deviation of 2 at most.
    """
    return 2.0 * float(np.log(_times(values)).std())


def _times(values: Sequence[float | None]) -> Floats:
    worst = max(value for value in values if value is not None)
    return np.asarray([worst if value is None else value for value in values])


def _scaled(values: Floats) -> Floats:
    deviation = float(values.std())
    centred: Floats = values - values.mean()
    return centred / deviation if deviation > 0.0 else centred
