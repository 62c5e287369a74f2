"""Replays of pools of live size: the whole pool from a part of it, and several families together."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from toy_family import toy_space

from benchmarks.search import live_size
from kernels.registry import FAMILIES
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Outcome
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble
from tuner.search.pool import Pool

PROBLEM = GemmProblem(96, 128, 64, DType.FLOAT32)
DEVICE = DeviceSpec("host", "x86_64", "cpu", 2, 2**33, 2**20)
HOST = FAMILIES["host"]


def cost(config: Config) -> float:
    """Microseconds, smooth in the positions of the values."""
    away = [knob.legal.index(config[knob.name]) / len(knob.legal) for knob in HOST.knobs]
    return 100.0 * math.exp(sum((one - 0.4) ** 2 for one in away))


def part(count: int) -> RecordedSpace:
    """Random configs of the host family's pool, one of them failed."""
    pool = Pool.of(HOST, PROBLEM, DEVICE)
    rows = np.random.default_rng(3).permutation(len(pool))[:count]
    configs = [pool.config(int(row)) for row in rows]
    entries = [Entry((cost(one),)) for one in configs]
    entries[5] = Entry((), Outcome.LAUNCH_ERROR, "on purpose")
    values = [[one[knob.name] for knob in HOST.knobs] for one in configs]
    points, ordered = assemble(pool.knobs, values, entries)
    return RecordedSpace("part", "host", pool.knobs, points, ordered, PROBLEM, DEVICE)


def test_a_part_of_a_pool_is_extended_to_the_whole_and_keeps_what_was_recorded() -> None:
    space = part(160)
    whole, error = live_size.extended(space)
    assert len(whole) == len(Pool.of(HOST, PROBLEM, DEVICE)) > 200
    for row in range(len(space)):
        config = space.index.config(row)
        if space.entries[row].samples_us:
            assert whole.entries[whole.row(config)] == space.entries[row]
    assert (error.shown, error.hidden) == (79, 80)
    assert 0 < error.median < 0.05
    assert error.rank > 0.9
    wrong = [math.log(whole.true_us[row] / cost(whole.index.config(row))) for row in range(len(whole))]
    assert float(np.median(np.abs(wrong))) < 0.05


def test_a_space_of_others_cannot_be_extended() -> None:
    with pytest.raises(SpaceError, match="leave out --fitted"):
        live_size.extended(toy_space())


@pytest.mark.long
def test_heuristic_configs_are_left_out_or_tried_first() -> None:
    whole, _ = live_size.extended(part(160))
    with_them = live_size.replayed([whole], True, runs=2, budget=30)
    without = live_size.replayed([whole], False, runs=2, budget=30)
    assert with_them["heuristic_configs"] > 0 == without["heuristic_configs"]
    assert with_them["fractions"].keys() == {10, 25}
    assert without["fractions"][25][0] > 0.8
    assert len(without["trials_to_98"]) == 2
    assert without == live_size.replayed([whole], False, runs=2, budget=30)


def test_fractions_are_of_the_best_of_all_families() -> None:
    fast, slow = toy_space(), toy_space()
    slower = tuple(dataclasses.replace(one, samples_us=(2 * one.samples_us[0],)) for one in slow.entries)
    slow = dataclasses.replace(slow, family="slow", entries=slower)
    families = [live_size.RecordedFamily(space) for space in (slow, fast)]
    search = live_size.open_search(families, fast.problem, fast.device, 60, 1)
    fractions = live_size.found(search, {"slow": slow, fast.family: fast}, 1)
    assert len(fractions) == 60
    assert fractions == sorted(fractions)
    assert 0.8 < fractions[-1] <= 1.0
    alone = live_size.open_search(families[:1], fast.problem, fast.device, 60, 1)
    assert live_size.found(alone, {"slow": slow, fast.family: fast}, 1)[-1] <= 0.5
