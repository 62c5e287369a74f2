"""The search inside the limits of smaller GPUs, on a space that was recorded on an H200."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.common.results import RESULTS
from kernels.mma_sync.family import MMA_SYNC
from kernels.registry import completed
from tilewright import Config
from tilewright.schema.device import DeviceSpec
from tuner.replay.formats import read_space
from tuner.replay.space import RecordedSpace

# KiB of shared memory that one CTA may have, and that of an SM.
LIMITS = {"RTX 4090": (99, 100), "A100": (163, 164), "none": (227, 228)}


@pytest.fixture(scope="module")
def space() -> RecordedSpace:
    return read_space(RESULTS.parent / "spaces" / "mma_sync-4096-h200.t4.json.gz")


def inside(space: RecordedSpace, limit: str) -> dict[Config, float]:
    """The measured microseconds of the configs that are valid within the limits."""
    configs = [completed(space.index.config(row)) for row in range(len(space))]
    timed = [(one, us) for one, us in zip(configs, space.true_us, strict=True) if not np.isnan(us)]
    spec = device(space, limit)
    return {one: us for one, us in timed if MMA_SYNC.why_invalid(one, space.problem, spec) is None}


def device(space: RecordedSpace, limit: str) -> DeviceSpec:
    one_cta, sm = LIMITS[limit]
    return dataclasses.replace(space.device, smem_per_block=one_cta << 10, smem_per_sm=sm << 10)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_heuristic_config_is_near_the_best_inside_the_limits(space: RecordedSpace, limit: str) -> None:
    """Within 11 %; the best inside 99 KiB is 6 % slower than the best of all."""
    valid = inside(space, limit)
    best = min(valid.values())
    assert best <= 1.07 * np.nanmin(space.true_us)
    assert len(valid) > 1000
    chosen = MMA_SYNC.heuristic_configs(space.problem, device(space, limit))
    measured = [valid[one] for one in chosen if one in valid]
    assert len(measured) >= 5
    assert min(measured) <= 1.11 * best


@pytest.mark.long
def test_the_limits_bind(space: RecordedSpace) -> None:
    sizes = [len(inside(space, limit)) for limit in LIMITS]
    assert sizes == sorted(set(sizes))
