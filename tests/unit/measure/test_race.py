"""A head_to_head of launches that overlap is run in two ways; the lesser lead counts."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import host_kernels
import pytest
from toy_family import TOY
from tune_lab import Lab, LabBench

from kernels.registry import FAMILIES
from tilewright import Artifact
from tilewright.launch import load
from tilewright.schema.codec import decode, encode
from tuner.devices.host import HostDevice
from tuner.measure import interleave, timing
from tuner.measure import race as races
from tuner.measure.operands import bind_all, rotated_sets
from tuner.measure.race import Race, RaceRules, RaceSamples
from tuner.measure.stats import median

PAUSE_S = 500e-6


class Pausing(HostDevice):
    """A host whose pauses take time."""

    def pause(self, stream: int = 0) -> None:
        del stream
        time.sleep(PAUSE_S)


class Overlapping:
    """A host kernel that says its launches overlap."""

    def __init__(self, arch: str) -> None:
        self._kernel = load(host_kernels.artifact(arch, ""))
        plan = dataclasses.replace(self._kernel.artifact.plan, programmatic=True)
        self.artifact = dataclasses.replace(self._kernel.artifact, plan=plan)

    def bind(self, *given: Any) -> Any:
        return self._kernel.bind(*given)


@pytest.fixture
def device(monkeypatch) -> HostDevice:
    monkeypatch.setattr(timing, "SAMPLE_US", 200.0)
    monkeypatch.setattr(HostDevice, "settle_s", 0.01)
    return Pausing()


def test_kernels_are_bound_in_turns(device) -> None:
    """Launches that are bound first lie on more pages: bound one after the other, the second kernel won."""
    order: list[str] = []

    class Named(Overlapping):
        def __init__(self, name: str) -> None:
            super().__init__(device.spec.arch)
            self.name = name

        def bind(self, *given: Any) -> Any:
            order.append(self.name)
            return super().bind(*given)

    kernels: Any = [Named("first"), Named("second")]
    sets = rotated_sets(device, host_kernels.PROBLEM)
    bound = bind_all(device, kernels, host_kernels.PROBLEM, sets)
    assert order == ["first", "second"] * len(sets)
    assert [len(one.launches) for one in bound] == [len(sets)] * 2


def test_a_head_to_head_of_launches_that_overlap_is_run_apart_as_well(device) -> None:
    kernel: Any = Overlapping(device.spec.arch)
    samples = races.race(device, [kernel], host_kernels.PROBLEM, RaceRules(8, 0))
    assert samples.candidates == (kernel.artifact.digest, "vendor")
    assert decode(RaceSamples, json.loads(json.dumps(encode(samples)))) == samples
    ours, vendor, ours_apart, vendor_apart = map(median, (*samples.samples_us, *samples.apart_us))
    assert ours_apart - ours > PAUSE_S * 1e6 / 2
    assert vendor_apart - vendor > PAUSE_S * 1e6 / 2


def test_other_races_are_not(device) -> None:
    overlapping: Any = Overlapping(device.spec.arch)
    plain = load(host_kernels.artifact(device.spec.arch, ""))
    for kernels in ([plain], [overlapping, plain]):
        samples = races.race(device, kernels, host_kernels.PROBLEM, RaceRules(2, 0))
        assert (len(samples.samples_us), samples.apart_us) == (len(kernels) + 1, ())
    alone = Race(device, [overlapping], host_kernels.PROBLEM, RaceRules(2, 0, vendor=False))
    alone.run(math.inf)
    assert (len(alone.samples().samples_us), alone.samples().apart_us) == (1, ())


def test_a_turn_is_long_enough_for_the_clock_unless_memory_is_the_limit(device, monkeypatch) -> None:
    taken: list[float] = []

    def each_round(*given: Any, **options: Any) -> Any:
        taken.append(given[-1])
        return interleave.each_round(*given, **options)

    monkeypatch.setattr(races, "each_round", each_round)
    plain = load(host_kernels.artifact(device.spec.arch, ""))
    for bound in (False, True):
        monkeypatch.setattr(races, "memory_bound", lambda _problem, _spec, bound=bound: bound)
        Race(device, [plain], host_kernels.PROBLEM, RaceRules(2, 0, vendor=False))
    assert taken == [races.RACE_SLICE_S, 0.0]
    assert races.RACE_SLICE_S == 2 * interleave.SLICE_S


class HeadToHeadBench(LabBench):
    """Head-to-heads have the rows that the test wants."""

    rows: tuple[float, ...] = ()
    apart: tuple[float, ...] = ()

    def race(self, artifacts: Sequence[Artifact], *given: Any, **options: Any) -> RaceSamples:
        samples = super().race(artifacts, *given, **options)
        if len(artifacts) > 1:
            return samples
        rows = (tuple((us,) * 16 for us in which) for which in (self.rows, self.apart))
        return dataclasses.replace(samples, **dict(zip(("samples_us", "apart_us"), rows, strict=True)))


@pytest.mark.parametrize(
    ("apart", "speedup"),
    [
        ((), 1.1),
        ((125.0, 120.0), 0.96),  # it led by its overlap alone
        ((110.0, 132.0), 1.1),
    ],
)
def test_the_lesser_lead_counts_and_times_are_back_to_back(apart, speedup, monkeypatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)
    lab = Lab()
    lab.bench = HeadToHeadBench()
    lab.bench.rows, lab.bench.apart = (100.0, 110.0), apart
    best = lab.tune()
    assert best is not None
    assert best.speedup == pytest.approx(speedup)
    assert (best.speedup_low, best.speedup_high) == pytest.approx((speedup, speedup))
    assert (best.timing.median_us, best.baseline.median_us) == (100.0, 110.0)
    kept = best.baseline.detail.get("apart_us")
    assert kept == (dict(zip(("kernel", "vendor"), apart, strict=True)) if apart else None)
    assert best.use_vendor is (speedup < 1.0)
