"""A real race of a kernel with itself: whoever is declared the winner is a false one.

The rules are those of a job: ratios within rounds, and the interval of their median at 99 %.
"""

from __future__ import annotations

import pytest

from kernels.build import build
from kernels.families.host import HOST
from tilewright import GemmProblem
from tilewright.launch import load
from tuner import measure
from tuner import race as races
from tuner.devices.host import HostDevice
from tuner.stats import paired_ratio

RACES = 100
MOST_FALSE_WINNERS = 5  # of 100: 5 %
ROUNDS = 16


def false_winners(device, kernel, problem) -> int:
    found = 0
    for seed in range(RACES):
        samples = races.race(device, [kernel, kernel], problem, ROUNDS, seed)
        first, second, _ = samples.samples_us
        found += not paired_ratio(first, second).undecided
    return found


@pytest.fixture
def short_samples(monkeypatch) -> None:
    monkeypatch.setattr(measure, "SAMPLE_US", 200.0)
    monkeypatch.setattr(measure, "WARM_UP_S", 0.002)
    monkeypatch.setattr(races, "WARM_UP_S", 0.01)


@pytest.mark.usefixtures("short_samples")
def test_the_same_kernel_rarely_beats_itself_on_the_host() -> None:
    device = HostDevice()
    problem = GemmProblem(64, 64, 64, dtype="float32")
    config = HOST.picks(problem, device.spec)[0]
    kernel = load(build(HOST, config, problem, device.spec))
    assert false_winners(device, kernel, problem) <= MOST_FALSE_WINNERS


@pytest.mark.usefixtures("short_samples")
def test_a_kernel_that_is_slower_loses_nearly_every_race() -> None:
    """The same test can tell two kernels apart, so the one above is no empty promise."""
    device = HostDevice()
    problem = GemmProblem(96, 96, 96, dtype="float32")
    single = [c for x in HOST.enumerate(problem, device.spec) if (c := HOST.at(x))["threads"] == 1]
    by_register_tile = sorted(single, key=lambda c: int(c["mr"]) * int(c["nv"]))
    narrow, wide = by_register_tile[0], by_register_tile[-1]
    kernels = [load(build(HOST, config, problem, device.spec)) for config in (narrow, wide)]
    won = 0
    for seed in range(10):
        slow, fast, _ = races.race(device, kernels, problem, ROUNDS, seed).samples_us
        won += paired_ratio(slow, fast).low > 1
    assert won >= 9
