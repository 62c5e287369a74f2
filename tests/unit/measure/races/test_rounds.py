"""Parts of a race: rounds, candidates left behind, the screening of a vendor's algorithms."""

from __future__ import annotations

import itertools
import math
import random
import time
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


@pytest.mark.parametrize(
    ("us", "sets", "asked", "graphs", "launches"),
    [
        (1000.0, 2, 48, 48, 2),  # 3 launches take 3 ms, of which a sample has whole turns
        (1.0, 8, 8, 8, 2048),
        (1.0, 8, 32, 32, 512),  # 2^14 / 32
        (1.0, 8, 48, 48, 336),  # 2^14 / 48 is 341
        (1.0, 128, 48, 48, 128 * 2),  # whole turns
        (6.0, 128, 12, 12, 128 * 3),
        (1500.0, 2**14, 48, 2**13, 2),
    ],
)
def test_candidates_have_a_graph_for_each_sample_and_short_kernels_shorter_samples(
    us: float, sets: int, asked: int, graphs: int, launches: int
) -> None:
    class Counting(Timed):
        """A device that keeps how many launches its timers have."""

        def timer(self, launches: Sequence[float]) -> Callable[[], float]:
            sizes.append(len(launches))
            return super().timer(launches)

    sizes, device = list[int](), Counting()
    interleave.equal_samplers(device, [[us] * sets], asked)  # type: ignore[list-item, arg-type]
    captured = sizes[1:]  # after the probe
    assert (len(captured), set(captured)) == (graphs, {launches})
    assert sum(captured) <= interleave.MOST_LAUNCHES


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


def test_at_the_power_limit_candidates_run_until_the_clock_is_their_own(clock, drawing) -> None:
    """A candidate takes 1 us until 60 ms after another one ran, then its own time."""
    began: dict[float, float] = {}

    def warming(late_us: float) -> Callable[[], float]:
        def us() -> float:
            if set(began) != {late_us}:
                began.clear()
                began[late_us] = clock.now
            return 1.0 if clock.now < began[late_us] + 0.06 else late_us

        return us

    samplers = [clock.sampler(warming(late_us)) for late_us in (3.0, 2.0)]
    taken = interleave.shuffled_rounds(drawing(690.0), samplers, 6, random.Random(0), passes=2)
    assert taken == interleave.Taken([[3.0] * 2, [2.0] * 2], [(1400.0, 690.0)] * 4, periods=True)
    assert clock.now == pytest.approx(4 * (interleave.PERIOD_S + interleave.OWN_CLOCK_S), abs=0.02)


@pytest.mark.parametrize("groups", [(), [range(3)]], ids=["all", "one wins"])
@pytest.mark.parametrize("late", [{"watts": 690.0}, {"watts": 300.0, "capped": True}], ids=str)
def test_rounds_before_the_power_limit_took_hold_do_not_count(late, groups, clock, drawing) -> None:
    """Nor does it count who was left behind in them."""
    device = drawing(300.0)
    shown = iter([Telemetry(1980.0, 300.0)] * 8)
    limited = Telemetry(1400.0, **late)
    times = [lambda us=us: us if device.told is limited else 10 * us for us in (100.0, 100.0, 150.0)]
    device.telemetry = lambda: setattr(device, "told", next(shown, limited)) or device.told
    samplers = [clock.sampler(us, 0.003) for us in times]
    taken = interleave.shuffled_rounds(device, samplers, 48, random.Random(0), groups, passes=1)
    assert taken.rows == [[pytest.approx(us)] for us in (100.0, 100.0, 150.0)]
    assert taken.states == [(1400.0, late["watts"])] * 3
    assert taken.periods


def test_the_ways_of_launching_have_a_period_each_one_after_the_other(clock, drawing) -> None:
    order = list[int]()

    def named(name: int) -> Callable[[], float]:
        return lambda: order.append(name) or float(name)

    taken, samplers = (
        interleave.Taken([[] for _ in range(4)]),
        [clock.sampler(named(name)) for name in range(4)],
    )
    steps = interleave.each_round(drawing(690.0), samplers, 32, random.Random(0), taken, 2, ways=2)
    assert sum(1 for _ in steps) == 4, "a step for each candidate, twice"
    assert taken.rows == [[float(name)] * 2 for name in range(4)]
    runs = [name for name, _ in itertools.groupby(order)]
    assert [(one, other) for one, other in zip(runs[::2], runs[1::2], strict=True)] == [
        (one, one + 2) for one in runs[::2]
    ]


def test_no_periods_where_the_clock_hardly_matters(drawing) -> None:
    counts = [0]

    def sample(_number: int) -> float:
        counts[0] += 1
        return 1.0

    taken = interleave.shuffled_rounds(drawing(690.0), [sample], 12, random.Random(0), passes=0)
    assert counts == [12]
    assert not taken.periods


@pytest.mark.parametrize(("watts", "mhz"), [(600.0, 1400.0), (None, 1400.0), (690.0, 1980.0)])
def test_below_it_a_sample_is_a_sample(watts, mhz, drawing) -> None:
    counts = [0, 0]

    def counted(index: int) -> Callable[[int], float]:
        def sample(number: int) -> float:
            counts[index] += 1
            return float(number)

        return sample

    taken = interleave.shuffled_rounds(drawing(watts, mhz), [counted(0), counted(1)], 5, random.Random(0))
    assert taken.rows == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2
    assert counts == [5, 5]


def test_who_is_left_behind_is_dropped(drawing) -> None:
    """After four samples; the last one does not compete."""
    samplers = [lambda _number, us=us: us for us in (100.0, 100.1, 105.0, 50.0)]
    rows = interleave.shuffled_rounds(drawing(600.0), samplers, 12, random.Random(0), [range(3)]).rows
    assert [len(row) for row in rows] == [12, 12, 4, 12]
    assert interleave.finishers(rows[:3]) == [0, 1]
    alone = interleave.shuffled_rounds(drawing(600.0), samplers[1:], 12, random.Random(0), [range(2)]).rows
    # One is left to compete: a round more, so that its row is the longest.
    assert [len(row) for row in alone] == [5, 4, 5]


@pytest.mark.parametrize("groups", [(), [range(2)]], ids=["all", "one wins"])
def test_at_the_power_limit_a_sample_sees_all_of_the_swing_wherever_it_begins(groups, clock, drawing) -> None:
    swing = [
        clock.sampler(lambda us=us: us * (1.0 + 0.05 * math.sin(math.tau * clock.now))) for us in (2.0, 3.0)
    ]
    taken = interleave.shuffled_rounds(drawing(690.0), swing, 32, random.Random(0), groups, passes=2)
    assert taken.rows == [pytest.approx([2.0] * 2, rel=1e-3), pytest.approx([3.0] * 2, rel=1e-3)]


def test_a_race_ends_when_every_group_is_decided(drawing) -> None:
    """The first group is decided at once, the second never."""
    samplers = [lambda _number, us=us: us for us in (100.0, 150.0, 80.0, 80.0)]
    groups = [range(2), range(2, 4)]
    rows = interleave.shuffled_rounds(drawing(600.0), samplers, 12, random.Random(0), groups).rows
    assert [len(row) for row in rows] == [12, interleave.FIRST_LOOK, 12, 12]


def test_few_algorithms_may_be_the_fastest() -> None:
    device: Any = Timed()
    choices = [
        VendorChoice("blas", [us], {"us": us}) for us in (100.0, 101.0, 99.0, 105.0, 100.5, 102.0, 99.5)
    ]
    near = vendor.leading(device, choices, power_matters=False)
    assert [choice.detail["us"] for choice in near] == [99.0, 99.5, 100.0]
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
    clock[0] += 100.0
    timing.settle(device, [], clock_matters=False)
    assert spent[4:] == [timing.RESETTLE * device.settle_s], "memory sets the pace"


@pytest.mark.parametrize(
    ("power_matters", "every", "expected"),
    [(True, False, [10.0, 10.1]), (False, False, [10.0, 10.1, 10.2]), (True, True, [10.0, 10.1, 10.2])],
)
def test_where_each_algorithm_costs_a_second_fewer_race(power_matters, every, expected) -> None:
    device = Timed()
    times = (10.25, 10.1, 11.0, 10.2, 10.0)
    choices = [VendorChoice("blas", [us] * 4, {"us": us}) for us in times]
    found = vendor.leading(device, choices, power_matters=power_matters, every=every)  # type: ignore[arg-type]
    assert [choice.detail["us"] for choice in found] == expected


@pytest.mark.parametrize(("sample_s", "together"), [(0.003, True), (0.012, False)])
def test_a_burst_times_algorithms_together_if_it_holds_one_sample_of_each(
    sample_s: float, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it does not, those that come later in a round would have the clock of a device that is loaded."""
    taken = list[float]()
    monkeypatch.setattr(
        vendor, "take", lambda sample, *_, rest_s: (taken.append(rest_s) or [sample(0)], False)
    )

    class Lasting(Timed):
        """A device whose samples last."""

        def timer(self, launches: Sequence[float]) -> Callable[[], float]:
            run = super().timer(launches)
            return lambda: time.sleep(sample_s) or run()

    device: Any = Lasting()
    choices = [VendorChoice("blas", [us] * 4, {"us": us}) for us in (1000.0, 1010.0, 990.0)]
    found = vendor.leading(device, choices, power_matters=True)
    assert [choice.detail["us"] for choice in found] == [990.0, 1000.0]
    assert taken == ([] if together else [timing.REST_S] * 3)


def test_every_algorithm_takes_part_where_that_is_asked_and_is_remembered_apart() -> None:
    class Proposing(HostDevice):
        def vendor(self, *_: object) -> list[VendorChoice]:
            return [VendorChoice("blas", [], {"split_k": 1})]

        def every_vendor(self, *_: object) -> list[VendorChoice]:
            return [*self.vendor(), VendorChoice("blas", [], {"split_k": 4})]

    device, problem = Proposing(), GemmProblem(8, 8, 8, "float32")
    known = vendor._known(device)
    known |= {(problem, False): {"split_k": 1}, (problem, True): {"split_k": 4}}
    found = [*vendor.leading_for(device, problem), vendor.fastest_of_every(device, problem)]
    assert [choice.detail["split_k"] for choice in found] == [1, 4]


def test_time_in_which_the_cpu_waits_is_no_load(clock) -> None:
    """The first replays take half a second, of which the device works for 3 ms."""
    waits, runs = iter([0.5, 0.5]), [0]

    def sample(_number: int) -> float:
        clock.now += next(waits, 0.003)
        runs[0] += 1
        return 100.0

    timing.keep_busy([sample, sample], 0.6)
    assert runs[0] * 0.003 == pytest.approx(0.6, abs=0.007)


@pytest.mark.parametrize("slow_s", [0.06, 0.2, 0.7])
def test_samples_after_a_rest_do_not_count(slow_s, clock, drawing) -> None:
    """While NVML takes long to answer the device rests; 30 ms after a rest a kernel takes 120 us, not 100."""
    device, ended, began = drawing(300.0), [0.0], [0.0]
    device.settle_s = 1.0

    def us() -> float:
        if clock.now > ended[0] + 0.05:
            began[0] = clock.now
        ended[0] = clock.now + 0.003
        return 100.0 if clock.now < began[0] + timing.BURST_S else 120.0

    def telemetry() -> Telemetry:
        clock.now += slow_s
        return device.told

    device.telemetry = telemetry
    samplers = [clock.sampler(us, 0.003)] * 2
    assert interleave.interleave(device, samplers, 4, 0).rows == [[120.0] * 4] * 2
    spent_s = clock.now
    interleave.shuffled_rounds(device, samplers, 4, random.Random(0), passes=0)
    assert clock.now - spent_s == pytest.approx(4 * (slow_s + 0.006)), "where the clock hardly matters"
