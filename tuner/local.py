"""Local search: iterated descent among valid configs that differ in one knob."""

from __future__ import annotations

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial

from tuner.history import History
from tuner.pool import Pool
from tuner.sampler import PoolSampler


class LocalSampler(PoolSampler):
    """Neighbours of the best of this descent, by lot; a new start where all of them were tried.

    The first descent begins at the best of whatever was told before.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._history = History(pool)
        self._begun = 0

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Begin another descent where this one has no neighbour left."""
        self._history.update(study, trial.number)
        centre = self._centre()
        if centre is not None and not len(self.pool.neighbours(centre)):
            self._begun = trial.number

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """A free neighbour of the centre, or a free row by lot."""
        del study, trial
        centre = self._centre()
        return self.pool.random(rng) if centre is None else int(rng.choice(self.pool.neighbours(centre)))

    def _centre(self) -> int | None:
        """The best row told of this descent."""
        told = [(v, row) for v, row in zip(*self._this_descent(), strict=True) if v is not None]
        return min(told)[1] if told else None

    def _this_descent(self) -> tuple[list[float | None], list[int]]:
        history = self._history
        return history.values[self._begun :], history.rows[self._begun : len(history.values)]
