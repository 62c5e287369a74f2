"""A real race of a kernel with itself: whoever is declared the winner is a false one.

The rules are those of a job: ratios within rounds, and the interval of their median at 99 %.
"""

from __future__ import annotations

import host_kernels
import pytest

from kernels.build import build
from kernels.families.host import HOST
from tilewright import GemmProblem
from tilewright.launch import load
from tuner import measure
from tuner import race as races
from tuner.devices.host import HostDevice
from tuner.stats import paired_ratio

pytestmark = pytest.mark.quiet

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
def test_a_slower_kernel_loses_nearly_every_race() -> None:
    """The same rules can tell kernels apart, so the test above is no empty promise."""
    device = HostDevice()
    slow = "for (volatile int i = 0; i < 20000; ++i) {}"
    kernels = [load(host_kernels.artifact(device.spec.arch, before)) for before in (slow, "")]
    won = 0
    for seed in range(20):
        late, early, _ = races.race(device, kernels, host_kernels.PROBLEM, ROUNDS, seed).samples_us
        won += paired_ratio(late, early).low > 1
    assert won >= 19
