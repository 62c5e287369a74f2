"""The default sampler: first configs far apart, then configs by the expected improvement of a model.

The model is a Gaussian process over the valid configs (:mod:`tuner.search.gp`). So its proposals are always
valid, and the best expected improvement is found by evaluating all configs. In pools too large for that it
evaluates a fixed random subset and the neighbours of the best.
"""

from __future__ import annotations

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial

from tuner.search.gp import Surrogate
from tuner.search.pool import Indices, Pool
from tuner.search.samplers import LocalSampler, PoolSampler

FIRST = 8
FEWEST_KNOWN = 3
FEWEST_JUDGED = 10
MOST_KNOWN = 300
MOST_CANDIDATES = 20_000
CENTRES = 5
FOLLOWED, MOST_FOLLOWED = 2, 16  # asks near the best, for each initial config and in all
SPREAD_AMONG = 200


class StagedSampler(PoolSampler):
    """Three stages: distant configs, model, local search.

    1. The first 8 asks, initial configs included, lie far from each other; more asks do while fewer than 3
    results
       are known.
    2. The next asks take the free config of the highest expected improvement. After initial configs, twice as
       many asks as there were, 16 at most, stay among the neighbours of the best 5. A failed config counts as
       the slowest known one.
    3. Beyond 300 asks the model costs more than it gains: local search from the best.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._local = LocalSampler(pool, self.history)
        self._model = Surrogate(pool, _candidates(pool))

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Let local search learn from the results once it is its turn."""
        if trial.number >= MOST_KNOWN:
            self._local.prepare(study, trial)

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """The row of the current stage."""
        if trial.number >= MOST_KNOWN:
            return self._local.choose(study, trial, rng)
        if trial.number < FIRST or self.history.measured < FEWEST_KNOWN:
            return self._spread(rng)
        followed = self.initial_configs + min(FOLLOWED * self.initial_configs, MOST_FOLLOWED)
        return self._expected(trial.number < followed)

    def expected_gain(self, lead: float) -> float | None:
        """The largest expected gain, as of the last config that the model chose; None below 10 results and
        from 300 on."""
        if not FEWEST_JUDGED <= self._model.known < MOST_KNOWN:
            return None
        return self._model.expected_gain(lead, self._outside_the_model())

    def _spread(self, rng: np.random.Generator) -> int:
        """Of some free rows, the one with the largest distance to its nearest asked row."""
        free = self.pool.some(SPREAD_AMONG, rng)
        asked = np.asarray(self.history.rows, dtype=np.int64)
        if not len(asked):
            return int(free[0])
        nearest = self.pool.squared(asked, free).sum(axis=0).min(axis=0)
        return int(free[nearest.argmax()])

    def _expected(self, close: bool) -> int:
        model = self._model
        model.learn(self.history.rows, self.history.values)
        if close and len(near := self._near_the_best()):
            return int(near[model.improvements_of(near).argmax()])
        others = self._outside_the_model()
        rows = np.append(model.candidates, others)
        gains = np.append(model.improvements(), model.improvements_of(others))
        return int(rows[np.where(self.pool.taken(rows), -np.inf, gains).argmax()])

    def _outside_the_model(self) -> Indices:
        """The rows to judge beside the model's candidates: near the best, if these are not the whole pool."""
        whole = len(self._model.candidates) == len(self.pool)
        return np.empty(0, dtype=np.int64) if whole else self._near_the_best()

    def _near_the_best(self) -> Indices:
        """The free neighbours of the best rows."""
        best = self.history.ranked()[:CENTRES]
        return np.unique(np.concatenate([self.pool.neighbours(row) for row in best]))


def _candidates(pool: Pool) -> Indices:
    if len(pool) <= MOST_CANDIDATES:
        return np.arange(len(pool))
    return np.sort(np.random.default_rng(0).choice(len(pool), MOST_CANDIDATES, replace=False))
