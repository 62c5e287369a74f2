"""The vendor library's algorithms for a problem, and the fastest of them."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from kernels.base.tile_hint import TileHint
from tilewright.errors import DeviceUnavailable
from tilewright.launch import Launch
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import STANDS_IN
from tuner.devices.base import Device, VendorChoice
from tuner.measure.interleave import (
    FEW_GRAPHS,
    MOST_AT_POWER_LIMIT,
    MOST_IN_A_RACE,
    Rows,
    Taken,
    equal_samplers,
    finishers,
    in_bursts,
    interleave,
)
from tuner.measure.operands import rotated_sets
from tuner.measure.stats import median
from tuner.measure.timing import BURST_S, REST_S, power_may_limit, take

_ROUNDS, _ROUNDS_IN_BURSTS = 32, 5
_KNOWN = 8
_SCREENS = ((48, 200.0), (8, 2000.0))  # (algorithms that stay, microseconds of each)
_SCREEN_RATIO = 1.12
_NEAR = 1.03  # what bursts predict is within 1.3 % of a race
_STAND_IN_OUT = {2: DType.FLOAT16, 4: DType.FLOAT32}  # by bytes of an element of D


def probably_fastest(device: Device, problem: GemmProblem) -> VendorChoice:
    """The fastest of the algorithms that the library proposes: the one that the process remembers, else the
    one that a few launches of each show.

    Raises:
        DeviceUnavailable: as :func:`vendor_choices`.
    """
    choices = vendor_choices(device, problem)
    same = _remembered(device, problem, choices, False)
    return same or min(_screened(device, choices), key=lambda choice: _quick_us(device, choice.launches))


def fastest_of_every(device: Device, problem: GemmProblem) -> VendorChoice:
    """The fastest of all algorithms of the library, as :meth:`Device.every_vendor` has them; the process
    remembers it for the last 8 problems.

    Raises:
        DeviceUnavailable: as :func:`vendor_choices`.
    """
    choices = vendor_choices(device, problem, every=True)
    chosen = _remembered(device, problem, choices, True)
    if chosen is None:
        chosen = fastest(device, choices, power_matters=power_may_limit(problem, device.spec))
        remember(device, problem, chosen, every=True)
    return chosen


def leading_for(device: Device, problem: GemmProblem) -> Sequence[VendorChoice]:
    """The library's algorithms that may be the fastest; only the fastest one if the process remembers it. The
    race that follows stores which one was the fastest (:func:`remember`).

    Raises:
        DeviceUnavailable: as :func:`vendor_choices`.
    """
    choices = vendor_choices(device, problem)
    same = _remembered(device, problem, choices, False)
    return [same] if same else leading(device, choices, power_matters=power_may_limit(problem, device.spec))


def remember(device: Device, problem: GemmProblem, choice: VendorChoice, *, every: bool = False) -> None:
    """Note which of the library's algorithms is the fastest for a problem."""
    known = _known(device)
    known.pop((problem, every), None)
    while len(known) >= _KNOWN:
        del known[next(iter(known))]
    known[problem, every] = choice.detail


def forget(device: Device, problem: GemmProblem) -> None:
    """Let the next race choose the fastest algorithm for a problem anew."""
    for every in (False, True):
        _known(device).pop((problem, every), None)


def _remembered(
    device: Device, problem: GemmProblem, choices: Sequence[VendorChoice], every: bool
) -> VendorChoice | None:
    detail = _known(device).get((problem, every))
    return next((choice for choice in choices if choice.detail == detail), None)


@functools.lru_cache(maxsize=1)
def _known(_device: Device) -> dict[tuple[GemmProblem, bool], dict[str, Any]]:
    """The attributes of the fastest algorithm, for each of the last problems."""
    return {}


def fastest(device: Device, choices: Sequence[VendorChoice], *, power_matters: bool = True) -> VendorChoice:
    """The choice with the lowest median of interleaved samples under load, among :func:`leading`.

    They race for as many rounds as candidates do, or until they are left behind, at the power limit for a
    second each.
    """
    choices = leading(device, choices, power_matters=power_matters, every=True)
    if len(choices) == 1:
        return choices[0]
    samplers = equal_samplers(device, [choice.launches for choice in choices], _ROUNDS)
    groups = [range(len(choices))]
    taken = interleave(device, samplers, _ROUNDS, 0, groups, passes=int(power_matters))
    return choices[fastest_row(taken.rows)]


def fastest_row(rows: Rows) -> int:
    """The row with the lowest median, of those that took part to the end."""
    return min(finishers(rows), key=lambda index: median(rows[index]))


def leading(
    device: Device, choices: Sequence[VendorChoice], *, power_matters: bool, every: bool = False
) -> Sequence[VendorChoice]:
    """The choices that may be the fastest: at most 3, within 3 % of the fastest. Where power may limit them,
    so that a race takes a second for each, at most 2, unless they are ``every`` algorithm of the library.

    A few launches of each rule out the slow ones; the others are timed as trials are, or in a few bursts
    together where power may limit them and a burst holds a sample of each.
    """
    if len(choices) == 1:
        return choices
    choices = _screened(device, choices)
    samplers = equal_samplers(device, [choice.launches for choice in choices], FEW_GRAPHS)
    if power_matters and _seconds(samplers) <= BURST_S:
        taken = Taken([[] for _ in samplers])
        for _ in in_bursts(device, samplers, _ROUNDS_IN_BURSTS, random.Random(0), taken):
            pass
        times = [median(row) for row in taken.rows]
    else:
        rest_s = REST_S if power_matters else 0.0
        times = [median(take(sample, None, rest_s=rest_s)[0]) for sample in samplers]
    ranked = sorted(range(len(choices)), key=lambda index: times[index])
    most = MOST_AT_POWER_LIMIT if power_matters and not every else MOST_IN_A_RACE
    return [choices[index] for index in ranked[:most] if times[index] <= _NEAR * min(times)]


def _seconds(samplers: Sequence[Callable[[int], float]]) -> float:
    """Seconds of one sample of each."""
    began = time.monotonic()
    for sample in samplers:
        sample(-1)
    return time.monotonic() - began


def _screened(device: Device, choices: Sequence[VendorChoice]) -> Sequence[VendorChoice]:
    """The first choice and the fastest others, at most 12 % slower than the fastest.

    Each runs for a short time, then the fastest of these for a longer time.
    """
    probe = device.timer(choices[0].launches)
    probe()
    first_us = max(probe(), 0.1)
    for kept, quick_us in _SCREENS:
        if len(choices) > kept:
            count = max(1, round(quick_us / first_us))
            times = [_quick_us(device, choice.launches[:count]) for choice in choices]
            ranked = sorted(range(1, len(choices)), key=lambda i: times[i])[: kept - 1]
            limit = _SCREEN_RATIO * min(times)
            choices = [choices[0], *(choices[i] for i in ranked if times[i] <= limit)]
    return choices


def _quick_us(device: Device, launches: Sequence[Launch]) -> float:
    """Microseconds of a launch: the faster of two runs, after one that does not count."""
    sample = device.timer(launches)
    sample()
    return min(sample(), sample())


def vendor_choices(device: Device, problem: GemmProblem, *, every: bool = False) -> list[VendorChoice]:
    """The algorithms of the vendor library; the one that it would choose comes first.

    Raises:
        DeviceUnavailable: the library is missing or has no algorithm for the problem.
    """
    propose = device.every_vendor if every else device.vendor
    choices = propose(problem, rotated_sets(device, problem)) or _stand_ins(device, problem)
    if not choices:
        raise DeviceUnavailable(f"the vendor library proposes no algorithm for {problem}")
    return choices


def _stand_ins(device: Device, problem: GemmProblem) -> list[VendorChoice]:
    """The vendor library's algorithms in float16, for operands of 8 bits and fewer that it does not compute.

    float16 holds all of their values. The conversion is not timed.
    """
    if problem.dtype.bits > 8:
        return []
    wide = dataclasses.replace(
        problem, dtype=DType.FLOAT16, acc_dtype=DType.FLOAT32, out_dtype=_STAND_IN_OUT[problem.out.size]
    )
    return [
        dataclasses.replace(
            choice, name=f"{choice.name} float16", detail=choice.detail | {STANDS_IN: problem.dtype.value}
        )
        for choice in device.vendor(wide, rotated_sets(device, wide))
    ]


MOST_HINTS = 2


def vendor_tile_hints(device: Device, problem: GemmProblem) -> list[TileHint]:
    """The first two different tile hints of the library's algorithms, in its order.

    The list is empty if the library gives no hint or does not compute the problem. Nothing is timed: the same
    library on the same device always gives the same hints.

    Raises:
        DeviceUnavailable: the library is missing.
        LaunchError: the device failed.
    """
    proposed = device.vendor(problem, rotated_sets(device, problem))
    hints = dict.fromkeys(choice.hint for choice in proposed if choice.hint)
    return list(hints)[:MOST_HINTS]
