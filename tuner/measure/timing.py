"""Timing of one kernel in a trial, in bursts.

A GPU that rested runs its first 30 ms at its highest clock, however much power the kernel draws. Then the
power limit takes hold, and the clock swings for some seconds. On an H100 the samples of such a burst repeat
within 0.2 to 0.8 % and predict the sustained time up to 1.3 %, where samples after 50 ms of load scattered by
4 % (benchmarks/lab/2026-11-25-bursts.md). So trials of problems that power may limit are timed in bursts,
which compare well with each other and are faster than what the GPU sustains. Their intervals cover the
scatter of samples from a few bursts. Trials of quick jobs have fewer samples, and less rest before these
shorter bursts (benchmarks/lab/2026-11-30-quick-ladders.md). A launch longer than a burst is timed from rest
into the limit. Samples taken after :func:`settle` are at sustained clocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
import weakref
from collections.abc import Callable, Sequence

from kernels.limits import memory_bound
from tilewright.errors import LaunchError
from tilewright.launch import Kernel, Launch, load
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Timing
from tuner.devices.base import Device, Telemetry, Tensors
from tuner.measure.correctness import check_replays, check_replays_in_place
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median_interval, sample_interval

STILL_WARM_S = 0.3  # idle seconds after which a device settles anew
RESETTLE = 0.2  # of the time that an idle device needs
AT_LIMIT = 0.95  # of the power that a device may draw
BELOW_TOP = 0.99  # of its highest clock
_loaded_until: weakref.WeakKeyDictionary[Device, float] = weakref.WeakKeyDictionary()


def settle(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    *,
    power_matters: bool = True,
    clock_matters: bool = True,
) -> None:
    """Keep the device busy until its clock is one that it can hold.

    A device that was busy until just now (:func:`loaded`) needs less time, unless ``power_matters``: NVML
    tells the mean power of the last second, by which a race decides how to time.

    Args:
        clock_matters: False for kernels whose time hardly depends on the clock, which need less time in any
            case (benchmarks/lab/2026-11-29-seconds-of-races.md).
    """
    left_s = device.settle_s
    if not clock_matters or (not power_matters and idle_s(device) <= STILL_WARM_S):
        left_s *= RESETTLE
    keep_busy(samplers, left_s)
    loaded(device)


def at_power_limit(now: Telemetry, spec: DeviceSpec) -> bool:
    """Whether power, not the highest clock, limits the kernels that run on the device."""
    at_top = now.mhz is not None and now.mhz >= BELOW_TOP * spec.clock_mhz > 0
    near = now.watts is not None and now.watts >= AT_LIMIT * spec.power_watts > 0
    return not at_top and (now.capped or near)


def loaded(device: Device) -> None:
    """Note that the device was under load until now."""
    _loaded_until[device] = time.monotonic()


def idle_s(device: Device) -> float:
    """Seconds since the device was known to be under load; infinite if it never was."""
    return time.monotonic() - _loaded_until.get(device, -math.inf)


def keep_busy(samplers: Sequence[Callable[[int], float]], seconds: float) -> None:
    """Keep the device busy for ``seconds``, with two samples of each sampler at least.

    A sample counts as the shortest of its sampler: a longer one may have left the device idle while the CPU
    waited.

    Runs the last graph of each sampler: a graph that ran just before is up to 2.6 % faster than an equal one
    (benchmarks/lab/2026-11-27-graphs.md), and the last graph is sampled after the others, if at all.
    """
    shortest_s = [math.inf for _ in samplers]
    for rounds in itertools.count(1):
        for index, sample in enumerate(samplers):
            began = time.monotonic()
            sample(-1)
            shortest_s[index] = min(shortest_s[index], time.monotonic() - began)
        if rounds > 1 and rounds * sum(shortest_s) >= seconds:
            return


METHOD, IN_BURSTS = "replay-v5", ", burst"
SAMPLE_US = 3000.0
WARM_UP_S = 0.002  # after a check; 20 ms give the same times (benchmarks/lab/2026-11-29-whole-seconds.md)
PROBES = 3
PRUNE_RATIO = 1.15
BURST_S, REST_S = 0.03, 0.06
FEWEST_SAMPLES, FEWEST_OF_QUICK = 9, 5  # in a job, in a quick one
MOST_SAMPLES, MOST_OF_A_LEADER = 31, 124
NARROW = 0.01
_MOST_LAUNCHES = 2048
_SLOWEST_FLOPS = {"cuda": 1e11, "host": 1e9}  # per second


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """What timing a kernel gave.

    Attributes:
        pruned: whether it was stopped early as too slow.
        wrong: the reason the timed launches gave wrong results, or None. Not looked for if ``pruned``.
    """

    timing: Timing
    pruned: bool
    wrong: str | None = None


def measure(
    device: Device,
    kernel: Kernel,
    problem: GemmProblem,
    incumbent_us: float | None,
    fewest: int = FEWEST_SAMPLES,
) -> Measurement:
    """Time a kernel that passed the check, then look at the results of the timed launches.

    Raises:
        LaunchError: the kernel does not run.
    """
    sets = rotated_sets(device, problem)
    bound = bind(device, kernel, problem, sets)  # keeps the workspace
    count = launches_per_sample(device, bound.launches)
    parts = of_samples(bound.launches, count)
    sample = sampler(device, parts)
    rest_s = REST_S * min(1.0, fewest / FEWEST_SAMPLES) if power_may_limit(problem, device.spec) else 0.0
    samples, pruned = take(sample, incumbent_us, fewest, rest_s)
    timed = timing(device, samples, METHOD + IN_BURSTS * bool(rest_s))

    def replay() -> None:
        for number in range(len(parts)):
            sample(number)

    seen = sets[: count * len(parts)]
    wrong = None if pruned else check_replays(device, problem, seen, bound.launches, replay)
    if not (pruned or wrong) and problem.has_c:
        wrong = check_replays_in_place(device, kernel, problem, seen)
    if not (pruned or wrong) and kernel.artifact.plan.programmatic:
        wrong = _wrong_overlap(device, kernel, problem, seen, count)
    return Measurement(timed, pruned, wrong)


def _wrong_overlap(
    device: Device, kernel: Kernel, problem: GemmProblem, sets: Sequence[Tensors], count: int
) -> str | None:
    """The reason the launches of a sample are wrong if each may start while the one before ends, as a
    client may have it; None if they are right."""
    overlapping = load(kernel.artifact, overlap=True)

    def checked() -> str | None:  # what it makes is gone when the kernel is unloaded
        bound = bind(device, overlapping, problem, sets)
        timers = [device.timer(part) for part in of_samples(bound.launches, count)]
        wrong = check_replays(device, problem, sets, bound.launches, lambda: [timer() for timer in timers])
        if wrong or not problem.has_c:
            return wrong
        return check_replays_in_place(device, overlapping, problem, sets)

    try:
        return checked()
    finally:
        with contextlib.suppress(LaunchError):  # a device that broke has said so
            overlapping.close()


def slowest_s(problem: GemmProblem, device: DeviceSpec) -> float:
    """Seconds after which a kernel of a GEMM counts as hanging."""
    return problem.flops / _SLOWEST_FLOPS[device.kind]


def power_may_limit(problem: GemmProblem, device: DeviceSpec) -> bool:
    """Whether the power limit of the device may decide how long a GEMM takes."""
    return device.power_watts > 0 and not memory_bound(problem, device)


def take(
    sample: Callable[[int], float],
    incumbent_us: float | None,
    fewest: int = FEWEST_SAMPLES,
    rest_s: float = 0.0,
) -> tuple[list[float], bool]:
    """Samples of one candidate in microseconds, and whether it was stopped early as too slow.

    Takes ``fewest`` samples, and more until their confidence interval is narrow or there are 31, 124 if the
    candidate may be faster than the incumbent: of many alike the luckiest one would lead otherwise. A
    candidate is too slow if all of its first samples are: a disturbance can only make a sample slower.

    Args:
        rest_s: idle seconds before each burst of samples; 0 to take them without a rest.
    """
    samples: list[float] = []
    limit_us = math.inf if incumbent_us is None else PRUNE_RATIO * incumbent_us
    ends, last_s = -math.inf, 0.0
    while len(samples) < fewest or not _enough(samples, incumbent_us):
        began = time.monotonic()
        if rest_s and began + last_s > ends:  # a sample that would end later waits for the next burst
            time.sleep(rest_s)
            began = time.monotonic()
            ends = began + BURST_S
        samples.append(sample(len(samples)))
        last_s = time.monotonic() - began
        if len(samples) == PROBES and min(samples) > limit_us:
            return samples, True
    return samples, False


def launches_per_sample(device: Device, launches: Sequence[Launch]) -> int:
    """The number of launches that take about ``SAMPLE_US``."""
    probe = device.timer(launches)
    probe()
    return min(max(1, round(SAMPLE_US / max(probe(), 0.1))), _MOST_LAUNCHES)


def of_samples(launches: Sequence[Launch], count: int) -> list[Sequence[Launch]]:
    """The ``count`` launches of a sample, or fewer if whole turns of all launches are fewer.

    If ``count`` is below the number of operand sets, successive samples use successive sets.
    """
    if count >= len(launches):
        return [list(launches) * (count // len(launches))]
    return [launches[i : i + count] for i in range(0, len(launches) - count + 1, count)]


def sampler(device: Device, parts: Sequence[Sequence[Launch]]) -> Callable[[int], float]:
    """A warmed-up function that returns sample ``i``, of the launches of a part, in microseconds per launch.

    Samples of the same number use the same part.
    """
    timers = [device.timer(part) for part in parts]
    end = time.monotonic() + WARM_UP_S
    for timer in itertools.cycle(timers):
        timer()
        if time.monotonic() >= end:
            break
    return in_turn(timers)


def in_turn(timers: Sequence[Callable[[], float]]) -> Callable[[int], float]:
    """A function that returns sample ``i``, from the timers in turn."""
    return lambda number: timers[number % len(timers)]()


def timing(device: Device, samples: Sequence[float], method: str = METHOD) -> Timing:
    """The ``Timing`` of samples, with the clock and power of the device now."""
    now = device.telemetry()
    return timing_of(samples, method, now.mhz, now.watts)


def timing_of(
    samples: Sequence[float],
    method: str,
    mhz: float | None = None,
    watts: float | None = None,
    disturbed: str = "",
    *,
    periods: bool = False,
) -> Timing:
    """The ``Timing`` of samples: their median and its confidence interval, or their mean if they are means of
    whole ``periods``."""
    interval = sample_interval(samples, periods)
    times = tuple(samples), interval.value, interval.low, interval.high
    return Timing(*times, method, mhz, watts, disturbed)


def _enough(samples: Sequence[float], incumbent_us: float | None) -> bool:
    """Whether more samples would change little, or would take too long."""
    interval = median_interval(samples)
    if interval.high - interval.low < NARROW * interval.value:
        return True
    may_lead = incumbent_us is not None and interval.low < incumbent_us
    return len(samples) >= (MOST_OF_A_LEADER if may_lead else MOST_SAMPLES)
