"""``Arm``: draws of the search from one family, and the class of each sampler."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable

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


class PoolStudy:
    """What a sampler knows of the search of a pool: the configs drawn from it, and their times.

    Attributes:
        pool: the valid configs.
    """

    def __init__(self, pool: Pool, sampler: Sampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.pool = pool
        self._sampler = sampler_of(sampler, pool)
        self._study = optuna.create_study(sampler=self._sampler)
        self._trials: dict[Config, Trial] = {}

    def reserve(self, config: Config) -> None:
        """Do not choose a config."""
        row = self.pool.index_of(config)
        if row is not None:
            self.pool.reserve(row)

    def search(self, seed: int) -> Config:
        """The config that the sampler chooses."""
        return self._draw(self._sampler, seed)

    def fixed(self, config: Config, seed: int, is_initial: bool) -> None:
        """Draw a given config; does nothing if the pool lacks it, so that its result is not learned."""
        row = self.pool.index_of(config)
        if row is not None:
            self._sampler.initial_configs += is_initial
            self._draw(FixedSampler(self._sampler, row), seed)

    def tell(self, config: Config, value_us: float | None) -> None:
        """Learn the time of a config that was drawn; None if it failed."""
        trial = self._trials.pop(config, None)
        if trial is not None:
            state = TrialState.PRUNED if value_us is None else TrialState.COMPLETE
            self._study.tell(trial, value_us, state=state)

    def expected_gain(self, lead: float) -> float | None:
        return self._sampler.expected_gain(lead)

    def _draw(self, sampler: PoolSampler, seed: int) -> Config:
        self._study.sampler, sampler.seed = sampler, seed
        trial = self._study.ask(sampler.space)
        config = self.pool.config(row_of(self.pool, trial.params))
        self._trials[config] = trial
        return config


class Arm:
    """Draws configs of one family and learns from their times.

    The valid configs are listed once they are needed: listing a large family takes a second, and many a short
    job tries initial configs alone. What happened before is then told to the sampler, in its order.

    Attributes:
        family: its name.
        odds: of being the fastest family, at most 1, relative to the most likely one.
        asked: configs drawn so far.
        shown_us: the lowest time after each result told, in microseconds; None while all failed.
    """

    def __init__(
        self,
        family: str,
        listing: Callable[[], Pool],
        initial_configs: Iterable[Config],
        sampler: Sampler = Sampler.STAGED,
        odds: float = 1.0,
    ) -> None:
        """``listing`` gives the valid configs."""
        self.family = family
        self.odds = odds
        self.asked = 0
        self.shown_us: list[float | None] = []
        self._listing, self._lock = listing, threading.Lock()
        self._pool: Pool | None = None
        self._initial_configs = tuple(initial_configs)
        self._tried: set[Config] = set()
        self._reserved: set[Config] = set()
        self._sampler = sampler
        self._opened: PoolStudy | None = None
        self._before: list[Callable[[PoolStudy], None]] = []

    @property
    def pool(self) -> Pool:
        """The valid configs, listed now if they were not before."""
        with self._lock:
            if self._pool is None:
                self._pool = self._listing()
            return self._pool

    @property
    def size(self) -> int | None:
        """The number of valid configs; None before they are listed."""
        pool = self._pool
        return None if pool is None else len(pool)

    @property
    def unsearched(self) -> int:
        """The number of initial configs that are not among the listed ones, but are tried too."""
        return sum(self.pool.index_of(config) is None for config in self._initial_configs)

    @property
    def initial_configs(self) -> list[Config]:
        """The initial configs that were neither tried nor reserved, the most promising one first."""
        gone = self._tried | self._reserved
        return [config for config in self._initial_configs if config not in gone]

    @property
    def exhausted(self) -> bool:
        """Whether every config was tried or is reserved."""
        return not self.initial_configs and not self.unclaimed

    @property
    def unclaimed(self) -> int:
        """The number of valid configs that were neither tried nor reserved."""
        return self._study.pool.unclaimed

    def reserve(self, config: Config) -> None:
        """Propose a config only as :meth:`fixed`: a recorded trial of it is replayed later."""
        self._reserved.add(config)
        self._learn(lambda study: study.reserve(config))

    def search(self, seed: int) -> Config:
        """The config that the sampler chooses."""
        config = self._study.search(seed)
        self._tried.add(config)
        self.asked += 1
        return config

    def fixed(self, config: Config, seed: int, is_initial: bool) -> Config:
        """A given config instead of the sampler's choice.

        Raises:
            ValueError: it was drawn before.
        """
        if config in self._tried:
            raise ValueError(f"{config} was proposed before")
        self._reserved.discard(config)
        self._tried.add(config)
        self.asked += 1
        self._learn(lambda study: study.fixed(config, seed, is_initial))
        return config

    def tell(self, config: Config, value_us: float | None) -> None:
        """Learn the time of a config in microseconds; None if it failed, which ranks below every time."""
        before = self.shown_us[-1] if self.shown_us else None
        known = [one for one in (before, value_us) if one is not None]
        self.shown_us.append(min(known, default=None))
        self._learn(lambda study: study.tell(config, value_us))

    def expected_gain(self, best_us: float) -> float | None:
        """The gain that the model expects of its next ask over ``best_us``, the best time of all families; as
        a fraction of it, None without a model."""
        own_us = self.best_us(len(self.shown_us))
        return self._study.expected_gain(math.log(own_us / best_us)) if own_us else None

    def best_us(self, results: int) -> float | None:
        """The lowest of the first ``results`` values told; None if there is none."""
        shown = self.shown_us[:results]
        return shown[-1] if shown else None

    def _learn(self, step: Callable[[PoolStudy], None]) -> None:
        if self._opened is None:
            self._before.append(step)
        else:
            step(self._opened)

    @property
    def _study(self) -> PoolStudy:
        if self._opened is None:
            study = PoolStudy(self.pool, self._sampler)
            for step in self._before:
                step(study)
            self._before.clear()
            self._opened = study
        return self._opened
