"""Samples of several contenders on one device, interleaved: what drifts hits all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from tilewright.launch import Launch
from tuner.devices.base import Device
from tuner.measure import launches_per_sample, sampler
from tuner.settle import load

WARM_UP_S = 1.0
Rows = list[list[float]]
States = list[tuple[float | None, float | None]]


def equal_samplers(device: Device, entrants: Sequence[Sequence[Launch]]) -> list[Callable[[int], float]]:
    """A sampler for each entrant, all of as many launches as the fastest one needs for a sample.

    Starting a replay costs a little, which more launches would spread thinner.
    """
    count = max(launches_per_sample(device, launches) for launches in entrants)
    return [sampler(device, launches, count) for launches in entrants]


def interleave(
    device: Device, samplers: Sequence[Callable[[int], float]], rounds: int, seed: int
) -> tuple[Rows, States]:
    """Load the device for ``WARM_UP_S`` seconds, then sample: one row of microseconds a sampler, and the
    clock in MHz and power in watts after each round."""
    load(samplers, WARM_UP_S)
    return shuffled_rounds(device, samplers, rounds, random.Random(seed))


def shuffled_rounds(
    device: Device, samplers: Sequence[Callable[[int], float]], rounds: int, order: random.Random
) -> tuple[Rows, States]:
    """``rounds`` rounds of one sample of each sampler, in a fresh random order: one row of microseconds a
    sampler, and the clock in MHz and power in watts after each round."""
    rows: Rows = [[] for _ in samplers]
    states: States = []
    for _ in each_round(device, samplers, rounds, order, (rows, states)):
        pass
    return rows, states


def each_round(
    device: Device,
    samplers: Sequence[Callable[[int], float]],
    rounds: int,
    order: random.Random,
    into: tuple[Rows, States],
) -> Iterator[None]:
    """Run one round at each step, into rows and states."""
    rows, states = into
    turn = list(range(len(samplers)))
    for number in range(rounds):
        order.shuffle(turn)
        for index in turn:
            rows[index].append(samplers[index](number))
        now = device.telemetry()
        states.append((now.mhz, now.watts))
        yield


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of what is not None; None where nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
