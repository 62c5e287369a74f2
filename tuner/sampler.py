"""Search policies as Optuna samplers that can only propose valid, untried configs.

A trial's parameters are the value indices of a pool's knobs, so that one parameter vector is one
point. Each sampler serves one ask and is seeded for it: what it proposes follows from its seed and
from what the study was told, never from how many asks came before it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuner.pool import Pool

DESCENT_CENTRES = 5


class PoolSampler(BaseSampler, abc.ABC):
    """A sampler over the free points of a pool; what it proposes is taken from then on.

    Subclasses say which free row comes next. Asking an exhausted pool raises IndexError.
    """

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.seed = seed
        self.rng = np.random.default_rng(seed)

    @abc.abstractmethod
    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """A free row of the pool."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All knobs of the pool, always."""
        del study, trial
        return distributions(self.pool)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen row, complete."""
        del search_space
        row = self.choose(study, trial)
        self.pool.take(row)
        return parameters(self.pool, row)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refused: a point is drawn as a whole."""
        del study, trial, param_distribution
        raise ValueError(f"{param_name} is no knob of {self.pool.family}: ask with its distributions")


class FixedSampler(PoolSampler):
    """Proposes one given row: a seed, or a trial of a job that is resumed."""

    def __init__(self, pool: Pool, row: int) -> None:
        super().__init__(pool, seed=0)
        self.row = row

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The given row."""
        del study, trial
        return self.row


class ProjectedSampler(PoolSampler):
    """Takes the free point nearest to a draw of an Optuna sampler, multivariate TPE unless given.

    Uniform over the free points while that sampler has nothing to say.
    """

    def __init__(self, pool: Pool, seed: int, inner: BaseSampler | None = None) -> None:
        super().__init__(pool, seed)
        self.inner = inner or TPESampler(seed=seed)

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The projection of one draw."""
        space = {name: knob for name, knob in distributions(self.pool).items() if not knob.single()}
        drawn = self.inner.sample_relative(study, trial, space)
        if not drawn:
            return self.pool.random(self.rng)
        return self.pool.nearest([drawn.get(knob.name, 0) for knob in self.pool.knobs], self.rng)


class DescentSampler(PoolSampler):
    """Local search: a free valid neighbour of the best point that has one, among the best few.

    Where none of these has any left, what ``beyond`` chooses.
    """

    def __init__(self, pool: Pool, seed: int, beyond: PoolSampler) -> None:
        super().__init__(pool, seed)
        self.beyond = beyond

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """A neighbour by lot."""
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        ranked = sorted(done, key=lambda one: (one.value or 0.0, one.number))
        for centre in ranked[:DESCENT_CENTRES]:
            free = self.pool.neighbours(row_of(self.pool, centre.params))
            if len(free):
                return int(self.rng.choice(free))
        return self.beyond.choose(study, trial)


def distributions(pool: Pool) -> dict[str, BaseDistribution]:
    """The parameters of a study over a pool: one categorical a knob."""
    return {knob.name: CategoricalDistribution(range(len(knob.values))) for knob in pool.knobs}


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
