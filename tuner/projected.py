"""Optuna's own samplers, kept to the free points of a pool."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler, CmaEsSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from tuner.pool import Pool
from tuner.sampler import PoolSampler, positions


class ProjectedSampler(PoolSampler, abc.ABC):
    """Takes the free point nearest to a draw of an Optuna sampler.

    Uniform over the free points while that sampler has nothing to say. The inner sampler is made anew
    for each ask; what it learns it reads from the study.
    """

    @abc.abstractmethod
    def inner(self) -> BaseSampler:
        """The sampler to draw from, seeded."""

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """The projection of one draw."""
        drawn = self.draw(study, trial)
        if not drawn:
            return self.pool.random(rng)
        return self.pool.nearest([drawn.get(knob.name, 0) for knob in self.pool.knobs], rng)

    def draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """What the inner sampler says; empty where that is nothing."""
        space = {name: knob for name, knob in self.space.items() if not knob.single()}
        return self.inner().sample_relative(study, trial, space)


class TpeSampler(ProjectedSampler):
    """Multivariate tree-structured Parzen estimator over categories."""

    def inner(self) -> BaseSampler:
        """Optuna's, with its defaults."""
        return TPESampler(seed=self.seed)


class CmaEsPoolSampler(ProjectedSampler):
    """Covariance matrix adaptation over the positions of the values."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, positions(pool))
        self._drawn: dict[str, Any] = {}

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Draw: Optuna keeps the state of this sampler with the trials that it drew."""
        self._drawn = super().draw(study, trial)

    def draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """What was drawn."""
        del study, trial
        return self._drawn

    def inner(self) -> BaseSampler:
        """Optuna's, with its defaults."""
        return CmaEsSampler(seed=self.seed)
