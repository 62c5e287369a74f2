"""The sampler of each search policy."""

from __future__ import annotations

from tilewright.policy import Policy
from tuner.local import LocalSampler
from tuner.pool import Pool
from tuner.projected import CmaEsPoolSampler, TpeSampler
from tuner.sampler import PoolSampler, UniformSampler
from tuner.staged import StagedSampler

SAMPLERS: dict[Policy, type[PoolSampler]] = {
    Policy.STAGED: StagedSampler,
    Policy.TPE: TpeSampler,
    Policy.CMAES: CmaEsPoolSampler,
    Policy.LOCAL: LocalSampler,
    Policy.RANDOM: UniformSampler,
    Policy.BRUTE: UniformSampler,
}


def sampler_of(policy: Policy, pool: Pool) -> PoolSampler:
    """A sampler for one search of a pool."""
    return SAMPLERS[policy](pool)
