"""Parts of a race: rounds and slices, candidates left behind, the screening of a vendor's algorithms."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import GemmProblem
from tuner.devices.base import Telemetry, VendorChoice
from tuner.devices.host import HostDevice
from tuner.measure import interleave, timing, vendor


class Timed:
    """A device whose timer reads what the launches carry; counts what each choice was run, and notes
    of which it made timers."""

    def __init__(self) -> None:
        self.spec = HostDevice().spec
        self.settle_s = HostDevice.settle_s
        self.runs: dict[float, int] = {}
        self.made: list[float] = []

    def timer(self, launches: Sequence[float]) -> Callable[[], float]:
        self.made.append(launches[0])

        def sample() -> float:
            self.runs[launches[0]] = self.runs.get(launches[0], 0) + 1
            return launches[0]

        return sample

    def telemetry(self) -> Telemetry:
        return Telemetry()


def test_the_fastest_of_many_algorithms_is_found_without_a_long_look_at_each() -> None:
    device = Timed()
    times = [50.0, *(100.0 + i for i in range(200)), 10.0, *(12.0 + i / 100 for i in range(30)), 11.0]
    choices = [VendorChoice("blas", [us] * 4, {"us": us}) for us in times]
    won = vendor.fastest(device, choices)  # type: ignore[arg-type]
    assert won.detail["us"] == 10.0
    assert device.runs[150.0] == 3  # a first look
    assert device.runs[11.0] > 3 * 3


def test_candidates_have_a_graph_for_each_sample_unless_these_would_be_too_many() -> None:
    device = Timed()
    long, short, many = [1000.0] * 2, [1.0] * 8, [1500.0] * 2**14  # 3, 2048 and 2**14 launches a sample
    interleave.equal_samplers(device, [long])  # type: ignore[list-item, arg-type]
    interleave.equal_samplers(device, [short])  # type: ignore[list-item, arg-type]
    interleave.equal_samplers(device, [many])  # type: ignore[list-item, arg-type]
    graphs = [collections.Counter(device.made)[us] - 1 for us in (1000.0, 1.0, 1500.0)]  # but for the probe
    assert graphs == [interleave.GRAPHS, 8, 2**13]


def test_graphs_of_candidates_are_captured_by_turns_and_only_the_last_one_warms_up() -> None:
    class Ordered(Timed):
        """A device that keeps which of its timers ran, in order."""

        def __init__(self) -> None:
            super().__init__()
            self.ran: list[int] = []

        def timer(self, launches: Sequence[float]) -> Callable[[], float]:
            run, number = super().timer(launches), len(self.made)

            def sample() -> float:
                self.ran.append(number)
                return run()

            return sample

    device = Ordered()
    samplers = interleave.equal_samplers(device, [[1000.0] * 2, [1500.0] * 2])  # type: ignore[list-item, arg-type]
    captured = device.made[2:]  # after the probes
    assert captured[:6] == [1000.0, 1500.0, 1500.0, 1000.0, 1000.0, 1500.0]
    assert len(captured) == 2 * interleave.GRAPHS
    assert {number for number in device.ran if number > 2} == {len(device.made) - 1, len(device.made)}
    device.ran.clear()
    assert [sample(number) for number in (0, 1) for sample in samplers] == [1000.0, 1500.0] * 2
    assert device.ran == [3, 4, 6, 5]


class Drawing(HostDevice):
    """A device that draws ``watts`` of its limit of 700."""

    def __init__(self, watts: float | None, mhz: float = 1400.0) -> None:
        super().__init__()
        self.spec = dataclasses.replace(self.spec, power_watts=700, clock_mhz=1980)
        self.told = Telemetry(mhz, watts)

    def telemetry(self) -> Telemetry:
        return self.told


def warming(late_us: float, clock: list[float]) -> Callable[[int], float]:
    """A sampler that takes 1 ms of ``clock``, at 1 us for the 20 ms after its first, then at ``late_us``."""
    began: list[float] = []

    def sample(_number: int) -> float:
        clock[0] += 0.001
        began[:] = began or [clock[0]]
        return 1.0 if clock[0] < began[0] + 0.02 else late_us

    return sample


def test_at_the_power_limit_candidates_run_until_the_clock_is_their_own(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(interleave, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    samplers = [warming(3.0, clock), warming(2.0, clock)]
    rows, states = interleave.shuffled_rounds(Drawing(690.0), samplers, 6, random.Random(0), slice_s=0.06)
    assert rows == [[3.0] * 3, [2.0] * 3]
    assert states == [(1400.0, 690.0)] * 3


def test_a_turn_at_the_power_limit_is_shared_by_the_ways_of_launching(monkeypatch) -> None:
    """Both ways of a candidate follow each other, and what comes before the clock has settled counts for
    neither."""
    clock, order = [0.0], list[int]()
    monkeypatch.setattr(interleave, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def sampler(name: int) -> Callable[[int], float]:
        def sample(_number: int) -> float:
            clock[0] += 0.001
            order.append(name)
            return float(name)

        return sample

    rows: interleave.Rows = [[] for _ in range(4)]
    into: tuple[interleave.Rows, interleave.States] = rows, []
    samplers = [sampler(name) for name in range(4)]
    rounds = interleave.each_round(Drawing(690.0), samplers, 8, random.Random(0), into, 0.04, ways=2)
    assert sum(1 for _ in rounds) == 8
    assert rows == [[float(name)] * 8 for name in range(4)]
    turns = [order[i : i + 40] for i in range(0, len(order), 40)]
    pairs = [(turn[0], turn[-1]) for turn in turns]
    assert turns == [[first] * 30 + [second] * 10 for first, second in pairs]
    assert {abs(first - second) for first, second in pairs} == {2}
    assert [first < second for first, second in pairs] == [*[True] * 4, *[False] * 4] * 2, "ways take turns"
    assert [order.count(name) // 8 for name in range(4)] == [20] * 4


@pytest.mark.parametrize("seed", range(4))
def test_no_candidate_is_ahead_of_another_more_often(seed) -> None:
    """Each order is followed by its reverse, also where a candidate has left in between."""
    order: list[int] = []

    def named(name: int) -> Callable[[int], float]:
        def sample(_number: int) -> float:
            order.append(name)
            return 200.0 if name == 3 else 100.0

        return sample

    samplers = [named(name) for name in range(4)]
    interleave.shuffled_rounds(Drawing(600.0), samplers, 8, random.Random(seed))
    rounds = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert rounds[1::2] == [one[::-1] for one in rounds[::2]]
    assert len({tuple(one) for one in rounds[::2]}) > 1, "another order after each pair"
    order.clear()
    interleave.shuffled_rounds(Drawing(600.0), samplers, 8, random.Random(seed), [range(4)])
    kept = [name for name in order if name != 3]
    rounds = [kept[i : i + 3] for i in range(0, len(kept), 3)]
    assert order.count(3) < len(rounds) == 8
    assert rounds[1::2] == [one[::-1] for one in rounds[::2]]


def test_a_sample_that_began_before_the_clock_had_settled_does_not_count(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(interleave, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def lasting(seconds: float) -> Callable[[int], float]:
        def sample(number: int) -> float:
            clock[0] += seconds
            return float(number)

        return sample

    for seconds, numbers in ((0.06, [2.5, 3.5, 4.5]), (0.3, [0.0, 1.0, 2.0])):
        rows, _ = interleave.shuffled_rounds(
            Drawing(690.0), [lasting(seconds)], 3, random.Random(0), slice_s=0.2
        )
        assert rows == [numbers], "its last sample counts where none began late enough"


def test_no_slices_where_the_clock_hardly_matters() -> None:
    counts = [0]

    def sample(_number: int) -> float:
        counts[0] += 1
        return 1.0

    interleave.shuffled_rounds(Drawing(690.0), [sample], 12, random.Random(0), slice_s=0.0)
    assert counts == [12]


def test_slices_are_enough_for_an_interval_if_rounds_were() -> None:
    given = (1, 2, 6, 8, 16, 31, 32, 61, 64)
    assert [interleave.slices(rounds) for rounds in given] == [1, 2, 3, 8, 8, 8, 8, 15, 16]


@pytest.mark.parametrize(("watts", "mhz"), [(600.0, 1400.0), (None, 1400.0), (690.0, 1980.0)])
def test_below_it_a_sample_is_a_sample(watts, mhz) -> None:
    counts = [0, 0]

    def counted(index: int) -> Callable[[int], float]:
        def sample(number: int) -> float:
            counts[index] += 1
            return float(number)

        return sample

    rows, _ = interleave.shuffled_rounds(Drawing(watts, mhz), [counted(0), counted(1)], 5, random.Random(0))
    assert rows == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2
    assert counts == [5, 5]


@pytest.mark.parametrize(("watts", "taken"), [(690.0, [3, 3, 2, 3]), (600.0, [12, 12, 4, 12])])
def test_who_is_left_behind_is_dropped(watts, taken, monkeypatch) -> None:
    """After two slices at the power limit, after four samples below it; the last one does not compete."""
    monkeypatch.setattr(interleave, "slices", lambda _rounds: 3)
    short = {"slice_s": 1e-9}
    samplers = [lambda _number, us=us: us for us in (100.0, 100.1, 105.0, 50.0)]
    rows, states = interleave.shuffled_rounds(
        Drawing(watts), samplers, 12, random.Random(0), [range(3)], **short
    )
    assert [len(row) for row in rows] == taken
    assert (interleave.finishers(rows[:3]), len(states)) == ([0, 1], max(taken))
    alone, _ = interleave.shuffled_rounds(
        Drawing(watts), samplers[1:], 12, random.Random(0), [range(2)], **short
    )
    # One is left to compete: a round more, so that its row is the longest.
    assert [len(row) for row in alone] == [taken[2] + 1, taken[2], taken[2] + 1]


def test_a_race_ends_when_every_group_is_decided() -> None:
    """The first group is decided at once, the second never."""
    samplers = [lambda _number, us=us: us for us in (100.0, 150.0, 80.0, 80.0)]
    rows, _ = interleave.shuffled_rounds(
        Drawing(600.0), samplers, 12, random.Random(0), [range(2), range(2, 4)]
    )
    assert [len(row) for row in rows] == [12, interleave.FIRST_LOOK, 12, 12]


def test_few_algorithms_may_be_the_fastest() -> None:
    device: Any = Timed()
    choices = [
        VendorChoice("blas", [us], {"us": us}) for us in (100.0, 101.0, 99.0, 105.0, 100.5, 102.0, 99.5)
    ]
    near = vendor.leading(device, choices, power_matters=False)
    assert [choice.detail["us"] for choice in near] == [99.0, 99.5, 100.0, 100.5]
    few = vendor.leading(device, choices[2:4], power_matters=False)
    assert [choice.detail["us"] for choice in few] == [99.0], "6 % slower"


def test_the_last_problems_are_remembered() -> None:
    device, choice = HostDevice(), VendorChoice("blas", [], {"us": 1.0})
    problems = [GemmProblem(m, 8, 8, "float32") for m in range(1, 10)]
    for problem in (*problems[:8], problems[0], problems[8]):
        vendor.remember(device, problem, choice)
    assert [problem.m for problem, _ in vendor._known(device)] == [3, 4, 5, 6, 7, 8, 1, 9]


def test_few_algorithms_all_race() -> None:
    device = Timed()
    choices = [VendorChoice("blas", [us], {"us": us}) for us in (3.0, 90.0, 1.0)]
    assert vendor.fastest(device, choices).detail["us"] == 1.0  # type: ignore[arg-type]
    assert device.runs[90.0] > 3


def test_a_device_that_was_busy_until_just_now_settles_sooner(monkeypatch) -> None:
    device, clock, spent = HostDevice(), [100.0], list[float]()
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(timing, "keep_busy", lambda _samplers, seconds: spent.append(seconds))
    for idle_s in (0.0, timing.STILL_WARM_S / 2, 2 * timing.STILL_WARM_S):
        clock[0] += idle_s
        timing.settle(device, [], power_matters=False)
    timing.settle(device, [])
    assert spent == [device.settle_s, timing.RESETTLE * device.settle_s, device.settle_s, device.settle_s]


def test_every_algorithm_takes_part_where_that_is_asked_and_is_remembered_apart() -> None:
    class Proposing(HostDevice):
        def vendor(self, *_: object) -> list[VendorChoice]:
            return [VendorChoice("blas", [], {"split_k": 1})]

        def every_vendor(self, *_: object) -> list[VendorChoice]:
            return [*self.vendor(), VendorChoice("blas", [], {"split_k": 4})]

    device, problem = Proposing(), GemmProblem(8, 8, 8, "float32")
    known = vendor._known(device)
    known |= {(problem, False): {"split_k": 1}, (problem, True): {"split_k": 4}}
    found = [vendor.fastest_for(device, problem, every=every) for every in (False, True)]
    assert [choice.detail["split_k"] for choice in found] == [1, 4]
