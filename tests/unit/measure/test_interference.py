"""What others take of a device is noticed, counted over the race alone, and told."""

from __future__ import annotations

import itertools
import os
import time
from types import SimpleNamespace
from typing import Any

import host_kernels
import pytest
from neighbour import a_nice_neighbour

from tilewright.launch import load
from tilewright.schema.codec import decode, encode
from tuner.devices.host import HostDevice
from tuner.measure import interference as module
from tuner.measure import race as races
from tuner.measure.interference import Interference
from tuner.measure.race import RaceRules

QUIET = {"busy": 0.0, "stolen": 0.0, "waited": 0.0}


class Told:
    """A device that tells what the test says, one second a stretch."""

    def __init__(self, *told: dict[str, float]) -> None:
        self._told = iter(told)

    def others(self) -> dict[str, float]:
        return next(self._told)


def interference_of(monkeypatch: pytest.MonkeyPatch, *told: dict[str, float]) -> Interference:
    """Stretches of one second, each between two things told."""
    clock = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    device: Any = Told(*told)
    interference = Interference(device)
    for _ in range(len(told) // 2):
        with interference.watched():
            pass
    return interference


def test_only_what_happens_in_the_stretches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{"busy": 5.0}, {"busy": 5.1}, {"busy": 905.0}, {"busy": 905.3}]
    interference = interference_of(monkeypatch, *told)
    assert interference.rates() == {"busy": pytest.approx(0.2)}
    assert interference.reasons() == ("others kept 0.20 cores busy",)


@pytest.mark.parametrize(
    ("taken", "reasons"),
    [
        (QUIET, ()),
        ({"busy": -0.02}, ()),  # what is counted in ticks may run behind
        ({"busy": 0.1, "stolen": 0.05, "waited": 0.05, "gpu": 0.05}, ()),
        ({"busy": 0.12, "stolen": 0.07}, ()),  # two ticks more than the limits
        ({"busy": 0.13}, ("others kept 0.13 cores busy",)),
        ({"busy": 0.97}, ("others kept 0.97 cores busy",)),
        ({"stolen": 0.2}, ("the hypervisor took 0.20 cores",)),
        ({"waited": 0.11}, ("it waited for a core for 11% of its time",)),
        ({"gpu": 0.4}, ("other processes used 40% of the GPU",)),
        ({"slowed": 0.25}, ("temperature or a power brake slowed the GPU for 25% of its time",)),
        ({}, ()),
    ],
    ids=str,
)
def test_what_is_above_a_limit_is_told(
    monkeypatch: pytest.MonkeyPatch, taken: dict[str, float], reasons: tuple[str, ...]
) -> None:
    assert interference_of(monkeypatch, dict.fromkeys(taken, 0.0), taken).reasons() == reasons


def test_a_kind_that_is_told_only_once_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interference_of(monkeypatch, {}, {"gpu": 7.0}).rates() == {"gpu": 0.0}


def test_a_race_beside_a_process_of_lowest_priority_says_so() -> None:
    device = HostDevice()
    kernel = load(host_kernels.artifact(device.spec.arch, ""))
    with a_nice_neighbour():
        samples = races.race(device, [kernel], host_kernels.PROBLEM, RaceRules(16, 0))
    assert any("cores busy" in reason for reason in samples.interference), samples.interference
    assert decode(races.RaceSamples, encode(samples)) == samples


def test_cores_that_the_system_does_not_list_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container sees its cores as cpu0 to cpu3, and may use those that are 60 to 63."""
    device = HostDevice()
    assert {"busy", "stolen"} <= device.others().keys()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {100_000})
    assert not {"busy", "stolen"} & device.others().keys()


def test_work_of_this_process_is_no_interference() -> None:
    """What this process computes itself does not count as the work of others."""
    device = HostDevice()
    used, before, start = time.process_time(), device.others(), time.monotonic()
    while time.monotonic() < start + 0.5:
        pass
    after, seconds = device.others(), time.monotonic() - start
    own_s = time.process_time() - used
    cores = len(os.sched_getaffinity(0))
    assert after["busy"] - before["busy"] <= cores * seconds - own_s + 0.1
    assert after["waited"] - before["waited"] == pytest.approx(seconds - own_s, abs=0.1)
