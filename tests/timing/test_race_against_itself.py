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
def test_one_thread_loses_nearly_every_race_to_two() -> None:
    """The same rules can tell kernels apart, so the test above is no empty promise."""
    device = HostDevice()
    if device.spec.units < 2:
        pytest.skip("needs two CPU threads")
    problem = GemmProblem(384, 384, 384, dtype="float32")
    configs = [HOST.at(point) for point in HOST.enumerate(problem, device.spec)]
    kernels = [
        load(build(HOST, next(c for c in configs if c["threads"] == threads), problem, device.spec))
        for threads in (1, 2)
    ]
    won = 0
    for seed in range(10):
        one, two, _ = races.race(device, kernels, problem, ROUNDS, seed).samples_us
        won += paired_ratio(one, two).low > 1
    assert won >= 8
