"""How often the races that end a job declare a winner between a kernel and itself: each is a false winner.

A final makes no such claim: final races that drop one of the twins are counted apart.

    python -m benchmarks.lab.race_aa --device cuda:0 --seconds 280 --out DIR

The first heuristic config of each shape takes part twice, in turn in a final, in a head-to-head and in the
race of a quick job, until the time is over. The rules are a job's, but for the vendor library: the kernel
takes its place.
``DIR/race-aa-CLASS.json`` is whole after every race; another run adds its races.
:mod:`benchmarks.lab.race_against_itself` looks at the CPU's heap.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import device_facts, now, write_json
from kernels.compiler.build import build
from kernels.registry import families_for
from tilewright import DType, GemmProblem, Layout
from tilewright.launch import Kernel, load
from tuner.devices.base import Device
from tuner.job.selection import FINAL, HEAD_TO_HEAD, QUICK, Stage
from tuner.measure.race import METHOD, race
from tuner.measure.stats import CONFIDENCE, median, speed_ratio
from tuner.workers.device_worker import open_device

SHAPES = "16x4096x4096 64x3072x2048 128x7168x2048 512x5120x5120 256x1024x8192 4096x4096x4096"
FAMILIES = ("wgmma_ws", "mma_sync", "host")
STAGES = {"final": FINAL, "head-to-head": HEAD_TO_HEAD, "quick": QUICK}


def first_kernel(device: Device, problem: GemmProblem) -> Kernel:
    """The kernel of the first heuristic config of the first of ``FAMILIES`` that computes the problem."""
    able = families_for(problem, device.spec)
    family = next(able[name] for name in FAMILIES if name in able)
    return load(build(family, family.heuristic_configs(problem, device.spec)[0], problem, device.spec))


def races(
    device: Device, kernels: dict[GemmProblem, Kernel], stages: Sequence[str], first_seed: int
) -> Iterator[dict[str, Any]]:
    """One row a race, the problems and the stages in turn, without end."""
    round_s: dict[GemmProblem, float] = {}
    for seed in itertools.count(first_seed):
        for (problem, kernel), name in itertools.product(kernels.items(), stages):
            started = time.monotonic()
            row = _race(device, kernel, problem, STAGES[name], seed, round_s.get(problem, 0.0))
            seconds = time.monotonic() - started
            round_s[problem] = seconds / max(row["rounds"])
            yield {"stage": name, "problem": str(problem), "seed": seed, "seconds": round(seconds, 2), **row}


def _race(
    device: Device, kernel: Kernel, problem: GemmProblem, stage: Stage, seed: int, round_s: float
) -> dict[str, Any]:
    rules = dataclasses.replace(stage.rules, seed=seed, rounds=stage.rounds(round_s), vendor=False)
    found = race(device, [kernel, kernel], problem, rules)
    rounds = [len(row) for row in found.samples_us]
    raced = {"rounds": rounds, "interference": found.interference, "samples_us": found.samples_us}
    raced["method"] = found.method
    if rounds[0] != rounds[1]:
        return {**raced, "dropped": True, "false_winner": False}
    first, second = found.samples_us
    ratio = speed_ratio(first, second, found.periods)  # not widened for bursts
    interval = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    claimed = not ratio.undecided and stage is not FINAL
    return {**raced, "dropped": False, "false_winner": claimed, **interval}


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The number of undisturbed races, and how many of them had a false winner or dropped a candidate.
    Disturbed races are counted apart, because a job repeats them."""
    quiet = [row for row in rows if not row["interference"]]
    return {
        "races": len(quiet),
        "false_winners": sum(row["false_winner"] for row in quiet),
        "dropped": sum(row["dropped"] for row in quiet),
        "disturbed": len(rows) - len(quiet),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts by problem and stage."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["problem"], row["stage"]), []).append(row)
    return [
        {
            "problem": problem,
            "stage": stage,
            "method": group[0].get("method", METHOD),  # rows of older runs do not have theirs
            **counts(group),
            "median_us": round(median([us for row in group for us in row["samples_us"][0]]), 3),
        }
        for (problem, stage), group in groups.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Race and write; prints a line a problem and stage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab.race_aa")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK, separated by blanks")
    parser.add_argument("--dtype", type=DType, default=DType.BFLOAT16)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--seconds", type=float, default=280.0)
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    given = parser.parse_args(arguments)
    device = open_device(given.device)
    extents = [tuple(map(int, shape.split("x"))) for shape in given.shapes.split()]
    problems = [GemmProblem(m, n, k, given.dtype, Layout.NT) for m, n, k in extents]
    kernels = {problem: first_kernel(device, problem) for problem in problems}
    path = given.out / f"race-aa-{device.spec.device_class.id}.json"
    given.out.mkdir(parents=True, exist_ok=True)
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    facts = {**device_facts(device.spec, device.driver), "method": METHOD, "confidence": CONFIDENCE}
    facts["command"] = ["python", "-m", "benchmarks.lab.race_aa", *(arguments or sys.argv[1:])]
    ends = time.monotonic() + given.seconds
    for row in races(device, kernels, given.stages, len(rows)):
        rows.append({"date": now(), "gpu": device.identity, **row})
        write_json(path, {**facts, **counts(rows), "by_problem": summary(rows), "rows": rows})
        if time.monotonic() >= ends:
            break
    for one in (*summary(rows), counts(rows)):
        sys.stdout.write(f"{one}\n")


if __name__ == "__main__":
    main()
