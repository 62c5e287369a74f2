"""Expected regret: hand-derived bands, and pairs found among real trials."""

from __future__ import annotations

import dataclasses

import pytest
from store_samples import HOST, HOST_CLASS, artifact, best, config, problem, request, trial

from tilewright.config import Config
from tilewright.problem import GemmProblem
from tilewright.trial import Outcome
from tuner.store import artifacts, jobs, regret, trials
from tuner.store import best as winners
from tuner.store.database import Store
from tuner.store.regret import Band, Pair


def test_distance_is_in_octaves() -> None:
    # 64 -> 128 in m is 1, 64 -> 1024 in k is 4: sqrt(1 + 16).
    assert regret.distance(problem(64), problem(128, k=1024)) == pytest.approx(17**0.5)
    assert regret.distance(problem(64), problem(64)) == 0.0


def test_bands_pool_all_nearer_pairs_and_never_fall() -> None:
    pairs = [Pair(0.4, 0.0), Pair(0.5, 0.1), Pair(0.9, 0.2), Pair(1.5, 0.0), Pair(1.6, 0.0)]
    # Up to 0.5 there are two pairs: too few. Up to 1 three, mean 0.1; up to 2 five, mean 0.06: held at 0.1.
    # Nine in ten of three is the third of 0, 0.1, 0.2; of five the fifth.
    assert regret.bands(pairs) == [
        Band(1.0, pytest.approx(0.1), 0.2, 3),
        Band(2.0, pytest.approx(0.1), 0.2, 5),
    ]
    assert regret.bands([]) == []
    assert regret.bands(pairs[:2]) == []


def tune(store: Store, of: GemmProblem, chosen: Config, medians: dict[Config, float | None]) -> None:
    """A finished job whose trials took these microseconds (None: failed), won by ``chosen``."""
    with store.begin() as session:
        artifacts.put(session, artifact())
        job, _ = jobs.submit(session, dataclasses.replace(request(), problem=of), HOST)
        for number, (tried, median) in enumerate(medians.items()):
            made = trial(number, median or 1.0, Outcome.OK if median else Outcome.LAUNCH_ERROR)
            made = dataclasses.replace(made, config=tried, timing=made.timing if median else None)
            trials.add(session, job.id, made)
        winners.put(session, dataclasses.replace(best(of), config=chosen, job_id=job.id))


def test_each_shape_is_answered_from_each_other_one(store: Store) -> None:
    a, b, c = config(1), config(2), config(3)
    tune(store, problem(64), a, {a: 10.0, b: 12.0, c: 15.0})
    tune(store, problem(128), b, {a: 22.0, b: 20.0})
    tune(store, problem(256), c, {a: 40.0, b: None, c: 44.0})
    with store.read() as session:
        found = regret.pairs(session, HOST_CLASS)
    # 64 from 128: 12/10; 64 from 256: 15/10; 128 from 64: 22/20; 128 from 256: not measured;
    # 256 from 64: 40/44 is no gain; 256 from 128: did not run.
    assert sorted((pair.distance, round(pair.regret, 9)) for pair in found) == [
        (1.0, 0.1),
        (1.0, 0.2),
        (2.0, 0.0),
        (2.0, 0.5),
    ]
    with store.read() as session:
        (band,) = regret.estimate(session, HOST_CLASS)
    assert (band.max_distance, band.pairs) == (2.0, 4)
    assert band.expected == pytest.approx(0.2)


def test_signatures_and_classes_do_not_mix(store: Store) -> None:
    a, b = config(1), config(2)
    tune(store, problem(64), a, {a: 10.0, b: 12.0})
    tune(store, dataclasses.replace(problem(128), has_bias=True), b, {a: 22.0, b: 20.0})
    with store.read() as session:
        assert regret.pairs(session, HOST_CLASS) == []
        assert regret.estimate(session, "sm_90-132sm-150gb-700w") == []
