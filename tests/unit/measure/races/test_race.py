"""What a race binds, which of its candidates compete, and in which ways it times them."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import host_kernels
import pytest

from tilewright.launch import Launch, load
from tilewright.launch.host import host_arch
from tilewright.schema.codec import decode, encode
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Tensors, VendorChoice
from tuner.devices.host import HostDevice
from tuner.measure import interleave, timing, vendor
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


class Named:
    """A host kernel that notes when it is bound."""

    def __init__(self, name: str, order: list[str]) -> None:
        self._kernel = load(host_kernels.artifact(host_arch(), ""))
        self._name, self._order, self.artifact = name, order, self._kernel.artifact

    def bind(self, *given: Any) -> Any:
        self._order.append(self._name)
        return self._kernel.bind(*given)


@pytest.fixture
def device(monkeypatch) -> HostDevice:
    monkeypatch.setattr(timing, "SAMPLE_US", 200.0)
    monkeypatch.setattr(HostDevice, "settle_s", 0.01)
    return Pausing()


def test_kernels_are_bound_in_turns(device) -> None:
    """Launches that are bound first lie on more pages: bound one after the other, the second kernel won."""
    order: list[str] = []
    kernels: Any = [Named("first", order), Named("second", order)]
    sets = rotated_sets(device, host_kernels.PROBLEM)
    bound = bind_all(device, kernels, host_kernels.PROBLEM, sets)
    assert order == ["first", "second"] * len(sets)
    assert [len(one.launches) for one in bound] == [len(sets)] * 2


def test_a_race_times_launches_apart_as_well_if_asked(device) -> None:
    kernel = load(host_kernels.artifact(device.spec.arch, ""))
    samples = races.race(device, [kernel], host_kernels.PROBLEM, RaceRules(8, 0, apart=True))
    assert samples.candidates == (kernel.artifact.digest, "vendor")
    assert decode(RaceSamples, json.loads(json.dumps(encode(samples)))) == samples
    ours, vendor, ours_apart, vendor_apart = map(median, (*samples.samples_us, *samples.apart_us))
    assert ours_apart - ours > PAUSE_S * 1e6 / 2
    assert vendor_apart - vendor > PAUSE_S * 1e6 / 2


def test_other_races_do_not(device) -> None:
    kernel = load(host_kernels.artifact(device.spec.arch, ""))
    samples = races.race(device, [kernel, kernel], host_kernels.PROBLEM, RaceRules(2, 0))
    assert (len(samples.samples_us), samples.apart_us) == (3, ())
    alone = Race(device, [kernel], host_kernels.PROBLEM, RaceRules(2, 0, vendor=False))
    alone.run(math.inf)
    assert (len(alone.samples().samples_us), alone.samples().apart_us) == (1, ())


class Slow:
    """A launch that is said to take so many seconds: how long a sleep takes depends on the machine's load."""

    def __init__(self, run: Launch, seconds: float) -> None:
        self._run, self.seconds = run, seconds

    def __call__(self, stream: int = 0) -> None:
        self._run(stream)


class Choosing(Pausing):
    """A host whose vendor library proposes three algorithms, the second of which takes the longest."""

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:
        (plain,) = super().vendor(problem, sets)
        return [
            VendorChoice("blas", [Slow(run, s) for run in plain.launches], {"algorithm": s})
            for s in (2e-3, 9e-3, 1e-3)
        ]

    def timer(self, launches: Sequence[Launch]) -> Callable[[], float]:
        first = launches[0]
        us = 1e6 * first.seconds if isinstance(first, Slow) else 500.0
        noise = random.Random(len(launches))
        return lambda: us * noise.uniform(0.99, 1.01)


@pytest.fixture
def _algorithms_compete(monkeypatch) -> None:
    """On a quiet device, though they differ by several times."""
    monkeypatch.setattr(races.Interference, "reasons", lambda _self: ())
    monkeypatch.setattr(vendor, "_SCREEN_RATIO", 4.0)
    monkeypatch.setattr(vendor, "_NEAR", 4.0)


@pytest.mark.usefixtures("device", "_algorithms_compete")
def test_algorithms_of_the_vendor_library_that_may_be_the_fastest_race_with_the_kernels(monkeypatch) -> None:
    device, kernel = Choosing(), load(host_kernels.artifact(host_arch(), ""))
    final = Race(device, [kernel, kernel], host_kernels.PROBLEM, RaceRules(16, 0, dropping=True))
    assert [choice.detail["algorithm"] for choice in final._algorithms] == [1e-3, 2e-3]
    final.run(math.inf)
    samples = final.samples()
    assert (samples.candidates[-1], samples.vendor_detail) == ("vendor", {"algorithm": 1e-3})
    assert len(samples.samples_us) == 3
    assert len(samples.samples_us[-1]) == max(map(len, samples.samples_us)), "it took part to the end"
    monkeypatch.setattr(vendor, "fastest", None)
    after = Race(device, [kernel], host_kernels.PROBLEM, RaceRules(2, 0))
    assert [choice.detail["algorithm"] for choice in after._algorithms] == [1e-3], "the final has chosen"


@pytest.mark.usefixtures("device", "_algorithms_compete")
def test_a_head_to_head_without_a_final_chooses_the_algorithm_and_has_all_its_rounds() -> None:
    device, kernel = Choosing(), load(host_kernels.artifact(host_arch(), ""))
    alone = Race(device, [kernel], host_kernels.PROBLEM, RaceRules(16, 0))
    alone.run(math.inf)
    samples = alone.samples()
    assert [len(row) for row in samples.samples_us] == [16, 16]
    assert [len(row) for row in alone._taken.rows] == [16, 16, interleave.FIRST_LOOK]
    assert samples.vendor_detail == {"algorithm": 1e-3}
    assert vendor._known(device)[host_kernels.PROBLEM, False] == {"algorithm": 1e-3}


@pytest.mark.usefixtures("device")
def test_what_was_chosen_under_interference_is_chosen_again(monkeypatch) -> None:
    """A final that others disturbed runs again, and its vendor library must not be what they left."""
    monkeypatch.setattr(races.Interference, "reasons", lambda _self: ("others kept 2.00 cores busy",))
    device, kernel = Choosing(), load(host_kernels.artifact(host_arch(), ""))
    vendor.remember(device, host_kernels.PROBLEM, VendorChoice("blas", [], {"algorithm": 2e-3}))
    final = Race(device, [kernel, kernel], host_kernels.PROBLEM, RaceRules(8, 0, dropping=True))
    assert [choice.detail["algorithm"] for choice in final._algorithms] == [2e-3]
    final.run(math.inf)
    assert vendor._known(device) == {}


def test_whether_power_limits_the_device_is_seen_under_load(drawing, monkeypatch) -> None:
    """The power that a device tells is the mean of the last second."""
    monkeypatch.setattr(races, "memory_bound", lambda _problem, _spec: False)
    idle = drawing(100.0)
    race = Race(
        idle, [load(host_kernels.artifact(host_arch(), ""))], host_kernels.PROBLEM, RaceRules(3, 0, 1, False)
    )
    idle.told = drawing(690.0).told
    race.run(math.inf)
    found = race.samples()
    assert ([len(row) for row in found.samples_us], found.periods) == ([1], True)


def test_the_clock_matters_unless_memory_is_the_limit(device, monkeypatch) -> None:
    taken: list[int] = []

    def each_round(*given: Any, **options: Any) -> Any:
        taken.append(given[-1])
        return interleave.each_round(*given, **options)

    monkeypatch.setattr(races, "each_round", each_round)
    plain = load(host_kernels.artifact(device.spec.arch, ""))
    for bound in (False, True):
        monkeypatch.setattr(races, "memory_bound", lambda _problem, _spec, bound=bound: bound)
        Race(device, [plain], host_kernels.PROBLEM, RaceRules(2, 0, vendor=False))
    assert taken == [2, 0]


@pytest.mark.usefixtures("device")
def test_a_race_has_a_graph_for_each_of_48_rounds(monkeypatch) -> None:
    asked = list[int]()
    prepared = races.equal_samplers
    monkeypatch.setattr(races, "equal_samplers", lambda *of: asked.append(of[2]) or prepared(*of))
    device, plain = Pausing(), load(host_kernels.artifact(host_arch(), ""))
    for rounds in (0, 12, 48, 61):
        Race(device, [plain], host_kernels.PROBLEM, RaceRules(rounds, 0, vendor=False))
    assert asked == [1, 12, 48, 48]


@pytest.mark.usefixtures("device")
def test_a_race_in_bursts_rests_before_each(drawing, monkeypatch, request) -> None:
    """Each burst of 30 ms begins after a rest of 60 ms and holds whole rounds, and nothing is loaded before
    the first one."""
    monkeypatch.setattr(races, "power_may_limit", lambda _problem, _spec: True)
    device, kernel = drawing(690.0), load(host_kernels.artifact(host_arch(), ""))
    rules = RaceRules(9, 0, vendor=False, quick=True, bursts=True)
    race = Race(device, [kernel, kernel], host_kernels.PROBLEM, rules)
    clock = request.getfixturevalue("clock")  # the seconds of the preparation are real
    began: list[tuple[float, int]] = []

    def sampler(candidate: int) -> Callable[[int], float]:
        def sample(_number: int) -> float:
            began.append((clock.now, candidate))
            clock.now += 0.004
            return 100.0

        return sample

    race._samplers[:] = [sampler(0), sampler(1)]
    race.warm_up()
    assert began == []
    steps = 0
    while not race.done:
        race.run(0.0)
        steps += 1
    found = race.samples()
    assert [len(row) for row in found.samples_us] == [9, 9]
    assert found.method == f"{races.METHOD_IN_BURSTS}, quick"
    assert (found.mhz, found.watts) == (1400.0, None)
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(began)]
    starts = [0, *(place + 1 for place, gap in enumerate(gaps) if gap > timing.REST_S)]
    assert starts == [0, 6, 12]
    assert steps == 3
    assert {candidate for _, candidate in began[::2]} == {0, 1}, "the order is random"
