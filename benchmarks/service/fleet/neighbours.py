"""How far the devices of one class differ, how much of it an anchor kernel corrects, and the cost of busy
neighbours.

A part of :mod:`benchmarks.service.fleet_gpus`, on the kernels of ``one-job``.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.common.results import Rows
from benchmarks.service.fleet.one_job import kept
from benchmarks.service.ray_services import Machine
from tilewright import Artifact, GemmProblem
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.stats import median
from tuner.workers.bench import Bench

REPEATS = 3
_RULES = RaceRules(8, 0, vendor=False, passes=1)
_LOAD = RaceRules(4, 0, vendor=False, passes=1)
_BESIDE_REPEATS = 2
_LONGEST_S = 120.0
_SETTLE_S = 1.0
_Logs = dict[str, list[list[float]]]  # by device, a row of each repeat: logarithms of there over here


def neighbours(machine: Machine, rows: Rows) -> None:
    """Measure how far devices differ from the first one on the same kernels, several times, without and with
    the correction by an anchor. Then time a kernel on the first and on the last device, while all others are
    idle and while they are busy."""
    known = kept(machine.folder / "kernels")
    with contextlib.ExitStack() as stack:
        benches = [stack.enter_context(contextlib.closing(Bench(name))) for name in machine.devices]
        logs: list[_Logs] = [{} for _ in known]
        for repeat in range(REPEATS):
            for (problem, kernels), of_problem in zip(known, logs, strict=True):
                _compare(benches, problem, kernels, repeat, of_problem, rows)
        for (problem, _), of_problem in zip(known, logs, strict=True):
            for row in anchored(of_problem):
                rows.add("anchor", problem=str(problem), **row)
        problem, kernels = known[0]
        for one in (benches[0], benches[-1]):
            for repeat in range(_BESIDE_REPEATS):
                for busy in ([], [bench for bench in benches if bench is not one]):
                    with contextlib.ExitStack() as loads:
                        for other in busy:
                            loads.enter_context(_loaded(other, problem, kernels[0]))
                        row = _timed(one, problem, kernels[0])
                    rows.add("beside", busy_neighbours=len(busy), repeat=repeat, **row)


def _compare(
    benches: Sequence[Bench],
    problem: GemmProblem,
    kernels: Sequence[Artifact],
    repeat: int,
    logs: _Logs,
    rows: Rows,
) -> None:
    """Race the kernels on each device in turn; the first kernel is the anchor."""
    here, *others = (bench.race(kernels, problem, _RULES, _LONGEST_S) for bench in benches)
    here_us = [median(row) for row in here.samples_us]
    shared = {"problem": str(problem), "repeat": repeat, "kernels": [kernel.digest for kernel in kernels]}
    rows.add("here", device=benches[0].name, **shared, **_samples(here))
    for bench, there in zip(benches[1:], others, strict=True):
        there_us = [median(row) for row in there.samples_us]
        ratios = [other / one for one, other in zip(here_us, there_us, strict=True)]
        rows.add(
            "devices",
            device=bench.name,
            **shared,
            here_us=here_us,
            there_us=there_us,
            there_over_here=ratios,
            after_anchor=[ratio / ratios[0] for ratio in ratios[1:]],
            **_samples(there),
        )
        # NOTE: on a host all devices have one name.
        logs.setdefault(f"{benches.index(bench)}: {bench.name}", []).append([math.log(one) for one in ratios])


def _samples(found: RaceSamples) -> dict[str, Any]:
    return {"samples_us": found.samples_us, "mhz": found.mhz, "watts": found.watts}


def anchored(logs: _Logs) -> Iterator[dict[str, Any]]:
    """The anchor's correction of each device (the negative logarithm of its ratio) with its standard error;
    then how far the ratios of the other kernels are from 1 on all devices, before and after the correction.

    Standard errors are those of a mean over the repeats. Their variance is that within the devices, pooled
    over them: a device alone has too few repeats. ``noise`` is what the spread would be if all devices were
    alike; there is a difference beyond it where the spread is clearly larger.
    """
    found = np.array(list(logs.values()))  # devices, repeats, kernels
    repeats = found.shape[1]
    anchors, others = found[:, :, :1], found[:, :, 1:]
    error = _standard_error(anchors)
    for device, row in zip(logs, anchors, strict=True):
        correction = -float(row.mean())
        yield {
            "device": device,
            "repeats": repeats,
            "correction": correction,
            "standard_error": error,
            "over_standard_error": abs(correction) / error if error else None,
        }
    if others.size:
        yield {
            "device": "all",
            "repeats": repeats,
            "correction": _spread(anchors),
            "standard_error": error,
            "spread_before": _spread(others),
            "noise_before": _standard_error(others),
            "spread_after": _spread(others - anchors),
            "noise_after": _standard_error(others - anchors),
        }


def _spread(logs: Any) -> float:
    """The root mean square over devices and kernels of the means over the repeats."""
    return float(np.sqrt((logs.mean(axis=1) ** 2).mean()))


def _standard_error(logs: Any) -> float:
    """Of a mean over the repeats, the variance pooled over devices and kernels."""
    variances = logs.var(axis=1, ddof=1)
    return math.sqrt(statistics.fmean(variances.ravel().tolist()) / logs.shape[1])


def _timed(bench: Bench, problem: GemmProblem, kernel: Artifact) -> dict[str, Any]:
    found = bench.race([kernel], problem, _RULES, _LONGEST_S)
    row: dict[str, Any] = {"device": bench.name, "identity": bench.identity, "problem": str(problem)}
    row |= {"median_us": median(found.samples_us[0]), "mhz": found.mhz, "watts": found.watts}
    return row | {"samples_us": found.samples_us[0], "interference": found.interference}


@contextlib.contextmanager
def _loaded(bench: Bench, problem: GemmProblem, kernel: Artifact) -> Iterator[None]:
    """A device that runs a kernel all the time."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            bench.race([kernel], problem, _LOAD, _LONGEST_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        time.sleep(_SETTLE_S)
        yield
    finally:
        ended.set()
        thread.join()
