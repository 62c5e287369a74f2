"""Optuna samplers that can only propose valid, untried configs.

A trial's parameters are the value indices of a pool's knobs, so that one parameter vector is one point. A
sampler is reseeded for each ask: its proposal is a function of that seed, of the asks so far and of the
results in the order in which they were told. It does not depend on how long anything took.

Several asks may wait for their results ("pending"). No pending config is proposed again, and each sampler
takes them into account by a rule of its own: the staged one as :class:`tuner.search.gp.Surrogate` says, TPE
by Optuna's constant liar, which counts them among the slow ones. Draws of CMA-ES and random ones are
independent anyway, and local search goes on around the best known config.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuner.search.pool import Pool


@dataclasses.dataclass(slots=True)
class History:
    """The rows of all asks of a study: those with a result in the order of results, then the pending ones.

    Attributes:
        numbers, answered, values: number of the ask, row, and result in microseconds, None if the config
            failed.
        pending: the row of each ask without a result by its number, in the order of asks.
    """

    numbers: list[int] = dataclasses.field(default_factory=list)
    answered: list[int] = dataclasses.field(default_factory=list)
    values: list[float | None] = dataclasses.field(default_factory=list)
    pending: dict[int, int] = dataclasses.field(default_factory=dict)

    def tell(self, number: int, value: float | None) -> None:
        """Add the result of a pending ask."""
        self.answered.append(self.pending.pop(number))
        self.numbers.append(number)
        self.values.append(value)

    @property
    def rows(self) -> list[int]:
        """The rows of all asks; the first ones belong to ``values``."""
        return [*self.answered, *self.pending.values()]

    @property
    def measured(self) -> int:
        """The number of results that are not failures."""
        return sum(value is not None for value in self.values)

    def ranked(self, first: int = 0) -> list[int]:
        """The measured rows of the asks from number ``first`` on, the fastest first."""
        asks = zip(self.values, self.answered, self.numbers, strict=True)
        return [row for _, row in sorted((v, row) for v, row, n in asks if v is not None and n >= first)]


class PoolSampler(BaseSampler, abc.ABC):
    """A sampler over the free points of a pool; a point is taken once it is proposed.

    Subclasses choose the next free row. Asking an exhausted pool raises IndexError.

    Attributes:
        pool: what is sampled.
        space: the parameters of its trials.
        seed: seed of the next ask.
        initial_configs: number of asks that were initial configs, which the sampler did not choose.
        history: the asks of the study so far and their results.
    """

    def __init__(
        self, pool: Pool, space: dict[str, BaseDistribution] | None = None, history: History | None = None
    ) -> None:
        self.pool = pool
        self.space = space or categories(pool)
        self.seed = 0
        self.initial_configs = 0
        self.history = history or History()

    @abc.abstractmethod
    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """A free row of the pool; ``rng`` was seeded for this ask."""

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Learn from the results, before every ask, also if another sampler proposes.

        Only this method changes what a sampler remembers between asks, so that a search whose first trials
        are replayed has the state of the search that chose them.
        """

    def expected_gain(self, lead: float) -> float | None:
        """The gain that the model expects of the next ask, as a fraction of the best time of all families.

        None without a model.

        Args:
            lead: logarithm of the best time of the pool over that of all families.
        """
        del lead
        return None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The search space: all knobs of the pool, always."""
        del study, trial
        return self.space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the chosen row."""
        del search_space
        self.pool.need_free()
        self.prepare(study, trial)
        rng = np.random.default_rng(self.seed)
        row = self.choose(study, trial, rng)
        if self.pool.is_reserved(row):
            row = self.pool.unreserved(rng)
        self.pool.take(row)
        self.history.pending[trial.number] = row
        return parameters(self.pool, row)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Add a result to the history; Optuna calls this when one is told."""
        del study
        self.history.tell(trial.number, values[0] if values and state is TrialState.COMPLETE else None)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Raise an error: a point is drawn as a whole."""
        del study, trial, param_distribution
        raise ValueError(f"{param_name} is no knob of {self.pool.family}: ask with its space")


class FixedSampler(PoolSampler):
    """Proposes one given row instead of ``sampler``: an initial config, or a trial of a resumed job."""

    def __init__(self, sampler: PoolSampler, row: int) -> None:
        super().__init__(sampler.pool, sampler.space, sampler.history)
        self._sampler = sampler
        self._row = row

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Let the replaced sampler learn from the results."""
        self._sampler.seed = self.seed
        self._sampler.prepare(study, trial)

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """The given row."""
        del study, trial, rng
        self.pool.release(self._row)
        return self._row


class UniformSampler(PoolSampler):
    """Proposes any free row: random search."""

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """A free row, drawn at random."""
        del study, trial
        return self.pool.random(rng)


def categories(pool: Pool) -> dict[str, BaseDistribution]:
    """The parameters of a study over a pool: one categorical for each knob."""
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


class LocalSampler(PoolSampler):
    """Proposes random neighbours of the best row of a descent, and starts anew when all were tried.

    The first descent begins at the best of all earlier results.
    """

    def __init__(self, pool: Pool, history: History | None = None) -> None:
        super().__init__(pool, history=history)
        self._begun = 0

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Begin another descent if this one has no free neighbour left."""
        del study
        centre = self._centre()
        if centre is not None and not len(self.pool.neighbours(centre)):
            self._begun = trial.number

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """A free neighbour of the best row of this descent, or any free row."""
        del study, trial
        centre = self._centre()
        return self.pool.random(rng) if centre is None else int(rng.choice(self.pool.neighbours(centre)))

    def _centre(self) -> int | None:
        """The best row of this descent, or None."""
        return next(iter(self.history.ranked(self._begun)), None)


class ProjectedSampler(PoolSampler, abc.ABC):
    """Proposes the free point nearest to a draw of an Optuna sampler.

    Draws uniformly while that sampler has no model yet. The inner sampler is made anew for each ask and reads
    the study.
    """

    @abc.abstractmethod
    def inner(self) -> BaseSampler:
        """A seeded Optuna sampler to draw from."""

    def choose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> int:
        """The free row nearest to one draw."""
        drawn = self.draw(study, trial)
        if not drawn:
            return self.pool.random(rng)
        return self.pool.nearest([drawn.get(knob.name, 0) for knob in self.pool.knobs], rng)

    def draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """The parameters that the inner sampler draws; empty if it has no model yet."""
        space = {name: knob for name, knob in self.space.items() if not knob.single()}
        return self.inner().sample_relative(study, trial, space)


class TpeSampler(ProjectedSampler):
    """Multivariate tree-structured Parzen estimator over categories."""

    def inner(self) -> BaseSampler:
        """The sampler of Optuna, which counts pending trials among the slow ones."""
        return TPESampler(seed=self.seed, constant_liar=True)


class CmaEsPoolSampler(ProjectedSampler):
    """Covariance matrix adaptation over the positions of the values."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, positions(pool))
        self._drawn: dict[str, Any] = {}

    def prepare(self, study: Study, trial: FrozenTrial) -> None:
        """Draw now: Optuna stores the state of this sampler in the trials that it drew."""
        self._drawn = super().draw(study, trial)

    def draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """The parameters that :meth:`prepare` drew."""
        del study, trial
        return self._drawn

    def inner(self) -> BaseSampler:
        """The sampler of Optuna with its defaults."""
        return CmaEsSampler(seed=self.seed)
