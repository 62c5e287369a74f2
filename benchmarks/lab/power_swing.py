"""How times and clock of a GPU swing at its power limit: samples of one kernel without a pause.

    python -m benchmarks.lab.power_swing --device cuda:0 --seconds 8 --out FILE

The first heuristic config of each shape runs under load. The file has, for each shape, the milliseconds
since the start, the microseconds of a launch and the clock in MHz; another run adds its shapes. What is
printed: the strongest period, how much means over 40 ms, half a period and a period scatter, and how much
samples differ that lie half a period and a whole one apart.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import device_facts, now, write_json
from benchmarks.lab.race_aa import first_kernel
from tilewright import DType, GemmProblem, Layout
from tuner.devices.base import Device
from tuner.measure.interleave import PERIOD_S, equal_samplers
from tuner.measure.operands import bind_all, rotated_sets
from tuner.measure.timing import settle
from tuner.workers.device_worker import open_device

SHAPES = "4096x4096x4096 512x5120x5120 8192x8192x8192"
_GRID_S, _SHORT_S = 0.01, 0.04
_PERIODS_S = np.arange(0.3, 3.0, 0.01)


def trace(device: Device, problem: GemmProblem, seconds: float) -> dict[str, list[float]]:
    """Samples of the first kernel of a problem, one after the other."""
    kernel = first_kernel(device, problem)
    try:
        bound = bind_all(device, [kernel], problem, rotated_sets(device, problem))
        (sample,) = equal_samplers(device, [bound[0].launches])
        settle(device, [sample])
        found: dict[str, list[float]] = {"ms": [], "us": [], "mhz": []}
        started = time.monotonic()
        while (passed := time.monotonic() - started) < seconds:
            found["us"].append(float(f"{sample(len(found['us'])):.6g}"))
            found["ms"].append(round(1000 * passed, 1))
            found["mhz"].append(device.telemetry().mhz or 0.0)
        return found
    finally:
        kernel.close()


def summary(found: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Lines of text about a trace."""
    seconds, us = np.asarray(found["ms"]) / 1000.0, np.asarray(found["us"])
    grid = np.arange(0.0, seconds[-1], _GRID_S)
    even = np.interp(grid, seconds, us)
    period_s, share = max(((one, _share(grid, even, one)) for one in _PERIODS_S), key=lambda found: found[1])
    yield f"period {period_s:.2f} s, {share:.0%} of the variance"
    yield f"{us.min():.4g} to {us.max():.4g} us"
    for length in (_SHORT_S, PERIOD_S / 2, PERIOD_S):
        means = [
            float(even[(grid >= start) & (grid < start + length)].mean()) for start in _starts(grid, length)
        ]
        yield f"means over {length:g} s scatter by {np.std(means) / us.mean():.2%}"
    for apart in (PERIOD_S / 2, PERIOD_S):
        lag = round(apart / _GRID_S)
        yield f"{apart:g} s apart they differ by {np.std(np.log(even[lag:] / even[:-lag])):.2%}"


def _share(seconds: Any, us: Any, period_s: float) -> float:
    """The share of the variance that a wave of such a period and its octave explain."""
    angles = math.tau * seconds / period_s
    waves = np.stack(
        [np.ones_like(angles), *(turn(k * angles) for k in (1, 2) for turn in (np.sin, np.cos))], 1
    )
    rest = us - waves @ np.linalg.lstsq(waves, us, rcond=None)[0]
    return 1.0 - float(rest.var() / us.var())


def _starts(grid: Any, length: float) -> Iterator[float]:
    return (index * length for index in range(int(grid[-1] / length)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab.power_swing")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK, separated by blanks")
    parser.add_argument("--dtype", type=DType, default=DType.BFLOAT16)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path, required=True, help="file of the traces")
    given = parser.parse_args(arguments)
    device = open_device(given.device)
    traces = json.loads(given.out.read_text())["traces"] if given.out.exists() else []
    command = ["python", "-m", "benchmarks.lab.power_swing", *(arguments or sys.argv[1:])]
    for shape in given.shapes.split():
        m, n, k = map(int, shape.split("x"))
        problem = GemmProblem(m, n, k, given.dtype, Layout.NT)
        found = trace(device, problem, given.seconds)
        traces.append({"gpu": device.identity, "problem": str(problem), "date": now(), **found})
        write_json(
            given.out, {**device_facts(device.spec, device.driver), "command": command, "traces": traces}
        )
        for line in summary(found):
            sys.stdout.write(f"{problem}: {line}\n")


if __name__ == "__main__":
    main()
