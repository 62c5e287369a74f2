"""Parts of a race of the suite: clocks that settle, the screening of a vendor's algorithms, wrong results."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from host_samples import artifact_of, config_of

from benchmarks.suite import race
from benchmarks.suite.opponents import BEST, CUBLAS, OURS, TORCH, most_error, opponents, relative_error
from benchmarks.suite.race import race_shape
from tilewright import GemmProblem
from tilewright.errors import ArtifactError
from tuner.devices.base import Telemetry, VendorChoice
from tuner.devices.host import HostDevice
from tuner.measure import interleave, timing, vendor
from tuner.measure.correctness import reference_values
from tuner.measure.operands import make_tensors

PROBLEM = GemmProblem(48, 64, 40, "float32")


class Clocked(HostDevice):
    """A CPU that tells given clocks, the last one for ever."""

    def __init__(self, clocks: Sequence[float | None]) -> None:
        super().__init__()
        self.clocks = list(clocks)
        self.asked = 0

    def telemetry(self) -> Telemetry:
        self.asked += 1
        return Telemetry(self.clocks[min(self.asked, len(self.clocks)) - 1], 400.0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(timing, "SLICE_S", 0.0)


def test_a_steady_clock_settles_after_the_fewest_slices() -> None:
    device = Clocked([1400.0])
    assert timing.reach_steady_clock(device, []) is True
    assert device.asked == timing.FEWEST


def test_a_falling_clock_is_waited_for() -> None:
    device = Clocked([1980.0, 1900.0, 1800.0, 1700.0, 1600.0, 1500.0, 1450.0, 1400.0])
    assert timing.reach_steady_clock(device, []) is True
    # Four of 1400 after four that are within 1 %: readings 8 .. 15, or 7 .. 14 with 1450 among them:
    # (1450 + 3 * 1400) / 4 = 1412.5 is 0.9 % above 1400.
    assert device.asked == 14


def test_a_clock_that_never_rests_is_drifting() -> None:
    device = Clocked([1400.0 + 40 * slice_ for slice_ in range(60)])
    assert timing.reach_steady_clock(device, []) is False
    assert device.asked == timing.MOST


def test_without_a_clock_it_is_unknown() -> None:
    assert timing.reach_steady_clock(Clocked([None]), []) is None


class Timed:
    """A device whose timer reads what the launches carry; counts what each choice was run."""

    def __init__(self) -> None:
        self.spec = HostDevice().spec
        self.settle_s = HostDevice.settle_s
        self.runs: dict[float, int] = {}

    def timer(self, launches: Sequence[float]) -> Callable[[], float]:
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
    turns = [name for name, before in zip(order, [-1, *order], strict=False) if name != before]
    assert {turns[i : i + 2] == [turns[i], turns[i] + 2] for i in range(0, len(turns), 2)} == {True}
    assert [order.count(name) // 8 for name in range(4)] == [30, 30, 10, 10]


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
        Drawing(watts), samplers, 12, random.Random(0), droppable=3, **short
    )
    assert [len(row) for row in rows] == taken
    assert (interleave.finishers(rows[:3]), len(states)) == ([0, 1], max(taken))
    alone, _ = interleave.shuffled_rounds(
        Drawing(watts), samplers[1:], 12, random.Random(0), droppable=2, **short
    )
    # One is left to compete: a round more, so that its row is the longest.
    assert [len(row) for row in alone] == [taken[2] + 1, taken[2], taken[2] + 1]


def test_few_algorithms_all_race() -> None:
    device = Timed()
    choices = [VendorChoice("blas", [us], {"us": us}) for us in (3.0, 90.0, 1.0)]
    assert vendor.fastest(device, choices).detail["us"] == 1.0  # type: ignore[arg-type]
    assert device.runs[90.0] > 3


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_on_the_host_numpy_is_the_only_opponent(device) -> None:
    sets = [make_tensors(device, PROBLEM, 0, "normal")]
    there, absent = opponents(device, PROBLEM, sets)
    assert [(one.name, one.detail["library"]) for one in there] == [(BEST, "numpy")]
    assert set(absent) == {CUBLAS, TORCH}
    there, absent = opponents(device, dataclasses.replace(PROBLEM, dtype="float16", out_dtype=None), sets)
    assert there == []
    assert "no algorithm" in absent[BEST]


def test_the_error_is_the_relative_norm(device) -> None:
    tensors = make_tensors(device, PROBLEM, 0, "normal")
    expected = reference_values(device, PROBLEM, tensors)

    def launch_of(values) -> Callable[[int], None]:
        def launch(_stream: int = 0) -> None:
            tensors.d[...] = values

        return launch

    def error(values) -> float:
        return relative_error(device, launch_of(values), PROBLEM, tensors, expected)

    assert error(expected * 1.01) == pytest.approx(0.01, rel=1e-3)
    assert error(0) == pytest.approx(1.0)
    assert error(expected) < most_error(PROBLEM) < 2e-6
    assert np.isnan(error(np.nan))
    assert not error(np.nan) <= most_error(PROBLEM)


def test_limits_grow_with_the_rounding_of_the_sum() -> None:
    # Two roundings of float16, and 2^-23 sqrt(4096) = 64 * 2^-23; accumulated in float16 64 * 2^-10 instead.
    assert most_error(GemmProblem(8, 8, 4096)) == pytest.approx(2 * 2**-10 + 64 * 2**-23)
    assert most_error(GemmProblem(8, 8, 4096, acc_dtype="float16")) == pytest.approx(2 * 2**-10 + 64 * 2**-10)


def test_a_race_on_the_host(device, monkeypatch) -> None:
    monkeypatch.setattr(race, "BURST_FLOPS", PROBLEM.flops)
    monkeypatch.setattr(race, "BURST_IDLE_S", 0.001)
    found = race_shape(device, PROBLEM, artifact_of(config_of(), PROBLEM), rounds=8, seed=0)
    assert list(found.samples_us) == [OURS, BEST, "ours_again"]
    assert {len(samples) for samples in found.samples_us.values()} == {8}
    assert set(found.burst_us) == {OURS, BEST}
    assert max(found.errors.values()) <= most_error(PROBLEM)
    assert found.sets * PROBLEM.operand_bytes >= min(2 * device.spec.l2_bytes, 128 * PROBLEM.operand_bytes)
    assert set(found.seconds) == {"operands", "opponents", "check", "settle", "rounds", "burst"}


def test_a_winner_that_computes_something_else_is_refused(device, monkeypatch) -> None:
    monkeypatch.setattr(race, "most_error", lambda _problem: 1e-12)
    with pytest.raises(ArtifactError, match="tune it again with --retune"):
        race_shape(device, PROBLEM, artifact_of(config_of(), PROBLEM), rounds=8, seed=0)


def test_a_device_that_was_busy_until_just_now_settles_sooner(monkeypatch) -> None:
    device, clock, spent = HostDevice(), [100.0], list[float]()
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(timing, "load", lambda _samplers, seconds: spent.append(seconds))
    for idle_s in (0.0, timing.STILL_WARM_S / 2, 2 * timing.STILL_WARM_S):
        clock[0] += idle_s
        timing.settle(device, [])
    assert spent == [device.settle_s, timing.RESETTLE * device.settle_s, device.settle_s]
