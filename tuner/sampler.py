"""Optuna samplers that can only propose valid, untried configs.

A trial's parameters are the value indices of a pool's knobs, so that one parameter vector is one
point. A sampler is reseeded for each ask: what it proposes follows from that seed and from what the
study was told, never from how long anything took.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from tuner.pool import Pool


class PoolSampler(BaseSampler, abc.ABC):
    """A sampler over the free points of a pool; what it proposes is taken from then on.

    Subclasses say which free row comes next. Asking an exhausted pool raises IndexError.

    Attributes:
        pool: what is sampled.
        space: the parameters of its trials.
        seed: of the coming ask.
        seeds: how many asks were seeds: configs that promise much, chosen by others.
    """

    def __init__(self, pool: Pool, space: dict[str, BaseDistribution] | None = None) -> None:
        self.pool = pool
        self.space = space or categories(pool)
        self.seed = 0
        self.seeds = 0

    @abc.abstractmethod
    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """A free row of the pool; ``rng`` was seeded for this ask."""

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Take note of what the study was told, before every ask of it, whoever chooses.

        What a sampler remembers from ask to ask is set here alone, so that a search whose first trials
        are replayed stands where the one stood that chose them.
        """

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All knobs of the pool, always."""
        del study, trial
        return self.space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen row, complete."""
        del search_space
        self.pool.need_free()
        self.prepare(study, trial)
        row = self.choose(study, trial, np.random.default_rng(self.seed))
        self.pool.take(row)
        return parameters(self.pool, row)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refused: a point is drawn as a whole."""
        del study, trial, param_distribution
        raise ValueError(f"{param_name} is no knob of {self.pool.family}: ask with its space")


class FixedSampler(PoolSampler):
    """Proposes one given row, a seed or a trial of a job that is resumed, in place of ``policy``."""

    def __init__(self, policy: PoolSampler, row: int) -> None:
        super().__init__(policy.pool, policy.space)
        self._policy = policy
        self._row = row

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """What the policy remembers."""
        self._policy.seed = self.seed
        self._policy.prepare(study, trial)

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """The given row."""
        del study, trial, rng
        return self._row


class UniformSampler(PoolSampler):
    """Any free row: random search, and brute force where the budget holds the pool."""

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """A row by lot."""
        del study, trial
        return self.pool.random(rng)


def categories(pool: Pool) -> dict[str, BaseDistribution]:
    """The parameters of a study over a pool: one categorical a knob."""
    return {knob.name: CategoricalDistribution(range(len(knob.values))) for knob in pool.knobs}


def positions(pool: Pool) -> dict[str, BaseDistribution]:
    """The same parameters as integers, for samplers that need an order."""
    return {knob.name: IntDistribution(0, len(knob.values) - 1) for knob in pool.knobs}


def parameters(pool: Pool, row: int) -> dict[str, int]:
    """A row as the parameters of a trial."""
    return dict(zip((knob.name for knob in pool.knobs), pool.points[row].tolist(), strict=True))


def row_of(pool: Pool, params: Mapping[str, int]) -> int:
    """The inverse of :func:`parameters`.

    Raises:
        KeyError: the parameters are not a valid point of the pool.
    """
    row = pool.find([params[knob.name] for knob in pool.knobs])
    if row is None:
        raise KeyError(f"{dict(params)} is not a valid config of {pool.family}")
    return row
