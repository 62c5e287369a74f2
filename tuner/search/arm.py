"""``Arm``: draws of the search from one family, and the class of each sampler."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import optuna
from optuna.trial import Trial, TrialState

from tilewright.schema.config import Config
from tilewright.schema.job import Sampler
from tuner.search.pool import Pool
from tuner.search.samplers import (
    CmaEsPoolSampler,
    FixedSampler,
    LocalSampler,
    PoolSampler,
    TpeSampler,
    UniformSampler,
    row_of,
)
from tuner.search.staged import StagedSampler

SAMPLERS: dict[Sampler, type[PoolSampler]] = {
    Sampler.STAGED: StagedSampler,
    Sampler.TPE: TpeSampler,
    Sampler.CMAES: CmaEsPoolSampler,
    Sampler.LOCAL: LocalSampler,
    Sampler.RANDOM: UniformSampler,
}


def sampler_of(name: Sampler, pool: Pool) -> PoolSampler:
    """A sampler for one search of a pool."""
    return SAMPLERS[name](pool)


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """A config drawn from an arm; ``trial`` is None if its values are not among the searched ones."""

    config: Config
    trial: Trial | None


class Arm:
    """Draws configs of one family and learns from their times.

    Attributes:
        pool: the valid configs.
        odds: of being the fastest family, at most 1, relative to the most likely one.
        asked: configs drawn so far.
        shown_us: the lowest time after each result told, in microseconds; None while all failed.
    """

    def __init__(
        self,
        pool: Pool,
        initial_configs: Iterable[Config],
        sampler: Sampler = Sampler.STAGED,
        odds: float = 1.0,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.pool = pool
        self.odds = odds
        self.asked = 0
        self.shown_us: list[float | None] = []
        self._initial_configs = tuple(initial_configs)
        self._outside: set[Config] = set()
        self._reserved: set[Config] = set()
        self._sampler = sampler_of(sampler, pool)
        self._study = optuna.create_study(sampler=self._sampler)

    @property
    def initial_configs(self) -> list[Config]:
        """The initial configs that were neither tried nor reserved, the most promising one first."""
        left = (config for config in self._initial_configs if config not in self._reserved)
        return [config for config in left if not self._tried(config)]

    @property
    def exhausted(self) -> bool:
        """Whether every config was tried or is reserved."""
        return not self.initial_configs and not self.pool.unclaimed

    def reserve(self, config: Config) -> None:
        """Propose a config only as :meth:`fixed`: a recorded trial of it is replayed later."""
        self._reserved.add(config)
        row = self.pool.index_of(config)
        if row is not None:
            self.pool.reserve(row)

    def search(self, seed: int) -> Draw:
        """The config that the sampler chooses."""
        return self._draw(self._sampler, seed)

    def fixed(self, config: Config, seed: int, is_initial: bool) -> Draw:
        """A given config instead of the sampler's choice.

        Raises:
            ValueError: it was drawn before.
        """
        if self._tried(config):
            raise ValueError(f"{config} was proposed before")
        self._reserved.discard(config)
        row = self.pool.index_of(config)
        if row is not None:
            self._sampler.initial_configs += is_initial
            return self._draw(FixedSampler(self._sampler, row), seed)
        self._outside.add(config)
        self.asked += 1
        return Draw(config, None)

    def tell(self, draw: Draw, value_us: float | None) -> None:
        """Learn the time of a config in microseconds; None if it failed, which ranks below every time."""
        before = self.shown_us[-1] if self.shown_us else None
        known = [one for one in (before, value_us) if one is not None]
        self.shown_us.append(min(known, default=None))
        if draw.trial is not None:
            state = TrialState.PRUNED if value_us is None else TrialState.COMPLETE
            self._study.tell(draw.trial, value_us, state=state)

    def expected_gain(self, best_us: float) -> float | None:
        """The gain that the model expects of its next ask over ``best_us``, the best time of all families; as
        a fraction of it, None without a model."""
        own_us = self.best_us(len(self.shown_us))
        return self._sampler.expected_gain(math.log(own_us / best_us)) if own_us else None

    def best_us(self, results: int) -> float | None:
        """The lowest of the first ``results`` values told; None if there is none."""
        shown = self.shown_us[:results]
        return shown[-1] if shown else None

    def _tried(self, config: Config) -> bool:
        row = self.pool.index_of(config)
        return config in self._outside if row is None else self.pool.is_taken(row)

    def _draw(self, sampler: PoolSampler, seed: int) -> Draw:
        self._study.sampler, sampler.seed = sampler, seed
        trial = self._study.ask(sampler.space)
        self.asked += 1
        return Draw(self.pool.config(row_of(self.pool, trial.params)), trial)
