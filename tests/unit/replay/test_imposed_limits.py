"""The search inside the limits of smaller GPUs, on a space that was recorded on an H200."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.common.results import RESULTS
from kernels.mma_sync.family import MMA_SYNC
from kernels.registry import completed
from tilewright import Config
from tuner.replay.formats import read_space

SPACE = read_space(RESULTS.parent / "spaces" / "mma_sync-4096-h200.t4.json.gz")
# KiB of shared memory that one CTA may have, and that of an SM.
LIMITS = {"RTX 4090": (99, 100), "A100": (163, 164), "none": (227, 228)}


def inside(limit: str) -> dict[Config, float]:
    """The measured microseconds of the configs that are valid within the limits."""
    configs = [completed(SPACE.index.config(row)) for row in range(len(SPACE))]
    timed = [(one, us) for one, us in zip(configs, SPACE.true_us, strict=True) if not np.isnan(us)]
    return {one: us for one, us in timed if MMA_SYNC.why_invalid(one, SPACE.problem, device(limit)) is None}


def device(limit: str):
    one_cta, sm = LIMITS[limit]
    return dataclasses.replace(SPACE.device, smem_per_block=one_cta << 10, smem_per_sm=sm << 10)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_heuristic_config_is_near_the_best_inside_the_limits(limit: str) -> None:
    """Within 11 %; the best inside 99 KiB is 6 % slower than the best of all."""
    valid = inside(limit)
    best = min(valid.values())
    assert best <= 1.07 * np.nanmin(SPACE.true_us)
    assert len(valid) > 1000
    chosen = MMA_SYNC.heuristic_configs(SPACE.problem, device(limit))
    measured = [valid[one] for one in chosen if one in valid]
    assert len(measured) >= 5
    assert min(measured) <= 1.11 * best


def test_the_limits_bind() -> None:
    sizes = [len(inside(limit)) for limit in LIMITS]
    assert sizes == sorted(set(sizes))
