"""How often a race declares a winner between a kernel and itself, on this CPU: each one is a false winner.

    python -m benchmarks.lab.race_against_itself [--races 100] [--sizes 64 256] [--out FILE]

The rules are those of a job (:mod:`tuner.measure.race`): interleaved rounds in random order, ratios within
rounds, and the interval of their median at 99 %. The kernel is the first heuristic config for a square
float32 problem. Each size is raced in the heap of a fresh process, and in a heap with holes, as in a process
that has run for long: what is allocated first there lies on many more pages than what comes after, so that
launches of the kernel that is bound first would be slower (:func:`tuner.measure.operands.bind_all`). The same
kernel with every other launch run twice must lose: the rules can tell kernels apart.

Exit codes: 0; 1 if a case has more false winners than ``ALLOWED``, or the slower kernel was found too rarely;
3 if the machine is not quiet, before or during the races, so that the figures say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import device_facts, now, write_json
from kernels.compiler.build import build
from kernels.host.family import HOST
from tilewright import DType, GemmProblem
from tilewright.launch import Kernel, Launch, Operands, load
from tuner.devices.host import HostDevice
from tuner.measure.interference import Interference
from tuner.measure.race import Race, RaceRules
from tuner.measure.stats import CONFIDENCE, Ratio, median, paired_ratio

ROUNDS = 16
ALLOWED = 0.05  # of the races of a case
FOUND = 0.95  # of the races with the slower kernel
FAILED, NOT_QUIET = 1, 3
_COLD_ROUNDS = 4  # in place of a job's second of load
_SLOWER_RACES = 20
_TWICE_EVERY = 2
_HOLE_PAGES = 1024
_PAGE = 4096

Samples = tuple[tuple[float, ...], ...]


def interference(device: HostDevice, seconds: float = 2.0) -> Interference:
    """What other processes take of the device while this one computes for some seconds."""
    found = Interference(device)
    with found.watched():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Races of two candidates in one kind of heap, with the samples of each."""

    problem: GemmProblem
    heap: str
    samples_us: list[Samples]

    def ratios(self) -> list[Ratio]:
        """One a race; above 1 the second candidate is the faster one."""
        return [paired_ratio(first, second) for first, second in self.samples_us]

    def summary(self) -> dict[str, Any]:
        """Plain data, without the samples."""
        ratios = self.ratios()
        won = {"first": sum(one.high < 1 for one in ratios), "second": sum(one.low > 1 for one in ratios)}
        return {
            "problem": str(self.problem),
            "heap": self.heap,
            "races": len(ratios),
            "false_winners": sum(won.values()),
            "won": won,
            "median_ratio": round(median([one.value for one in ratios]), 4),
            "median_us": round(median([time for rows in self.samples_us for time in rows[0]]), 3),
        }


class Slower:
    """A kernel of which every other launch computes twice."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._bound = kernel, 0
        self.artifact = kernel.artifact

    def bind(self, problem: GemmProblem, operands: Operands) -> Launch:
        """As the kernel's own."""
        launch = self._kernel.bind(problem, operands)
        self._bound += 1
        return _twice(launch) if self._bound % _TWICE_EVERY == 0 else launch


def _twice(launch: Launch) -> Launch:
    def run(stream: int = 0) -> None:
        launch(stream)
        launch(stream)

    return run


def first_kernel(device: HostDevice, problem: GemmProblem) -> Kernel:
    """The kernel of the first heuristic config, compiled and loaded."""
    return load(build(HOST, HOST.heuristic_configs(problem, device.spec)[0], problem, device.spec))


def raced(device: HostDevice, kernels: Sequence[Any], problem: GemmProblem, races: int) -> Iterator[Samples]:
    """The rows of each race, with a random seed of its own; the first rounds, still cold, do not count."""
    for seed in range(races):
        race = Race(device, kernels, problem, RaceRules(_COLD_ROUNDS + ROUNDS, seed, vendor=False))
        race.run(math.inf)
        yield tuple(row[_COLD_ROUNDS:] for row in race.samples().samples_us)


def holes() -> list[bytes]:
    """Objects of all small sizes that fill their pages except for one place of each."""
    kept = []
    for size in range(48, 257, 16):
        blocks = [bytes(size - sys.getsizeof(b"")) for _ in range(_HOLE_PAGES * _PAGE // size)]
        one_of = {id(block) // _PAGE: id(block) for block in blocks}
        kept += [block for block in blocks if one_of[id(block) // _PAGE] != id(block)]
    return kept


def cases(device: HostDevice, sizes: Sequence[int], races: int) -> Iterator[Case]:
    """Each size in each heap."""
    for size in sizes:
        problem = GemmProblem(size, size, size, dtype=DType.FLOAT32)
        kernel = first_kernel(device, problem)
        yield Case(problem, "fresh", list(raced(device, [kernel] * 2, problem, races)))
        around = holes()
        yield Case(problem, "holes", list(raced(device, [kernel] * 2, problem, races)))
        del around


def slower_found(device: HostDevice, size: int) -> int:
    """In how many races the kernel with additional work loses."""
    problem = GemmProblem(size, size, size, dtype=DType.FLOAT32)
    kernel = first_kernel(device, problem)
    rows = list(raced(device, [Slower(kernel), kernel], problem, _SLOWER_RACES))
    return sum(one.low > 1 for one in Case(problem, "fresh", rows).ratios())


def report(device: HostDevice, sizes: Sequence[int], races: int) -> tuple[dict[str, Any], list[Case]]:
    """Race, and print each case as it ends."""
    ran = []
    for case in cases(device, sizes, races):
        ran.append(case)
        shown = case.summary()
        _say("{problem}, {heap} heap: {false_winners} false winners of {races}".format_map(shown))
        _say("  won {won}, first over second {median_ratio}, {median_us} us".format_map(shown))
    found = slower_found(device, sizes[0])
    _say(f"a kernel with half as much work again loses {found} of {_SLOWER_RACES} races")
    summaries = [case.summary() for case in ran]
    totals = {name: sum(one[name] for one in summaries) for name in ("races", "false_winners")}
    slower = {"races": _SLOWER_RACES, "found": found}
    return {**totals, "confidence": CONFIDENCE, "allowed": ALLOWED, "cases": summaries, "slower": slower}, ran


def verdict(result: dict[str, Any]) -> int:
    """The exit code."""
    many = any(one["false_winners"] > ALLOWED * one["races"] for one in result["cases"])
    blind = result["slower"]["found"] < FOUND * result["slower"]["races"]
    return FAILED if many or blind else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _not_quiet(reasons: Sequence[str], when: str) -> int:
    _say(f"the machine {when}, so that figures would say nothing: {'; '.join(reasons)}")
    return NOT_QUIET


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab.race_against_itself")
    parser.add_argument("--races", type=int, default=100, help="of each case")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256], help="m, n and k of the problems")
    parser.add_argument("--out", type=Path, help="JSON file for the result, samples included")
    parser.add_argument("--anyway", action="store_true", help="race on a machine that is not quiet, too")
    return parser.parse_args(arguments)


def _conditions(device: HostDevice, races: int) -> str:
    return (
        f"{device.spec.name}, {device.spec.sm_count} threads, load {os.getloadavg()[0]:.2f};"
        f" {races} races a case, {ROUNDS} rounds each;"
        f" winners at {CONFIDENCE:.0%}, {ALLOWED:.0%} of the races may have one"
    )


def _kept(case: Case) -> list[Any]:
    return [[[round(us, 3) for us in row] for row in race] for race in case.samples_us]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the machine, race, print and write; the exit code."""
    given, device = _arguments(arguments), HostDevice()
    _say(_conditions(device, given.races))
    reasons = interference(device).reasons()
    if reasons and not given.anyway:
        return _not_quiet(reasons, "is not quiet")
    during = Interference(device)
    with during.watched():
        result, ran = report(device, given.sizes, given.races)
    if given.out:
        facts = {"date": now(), **device_facts(device.spec, device.driver)}
        facts["interference"] = during.rates()
        write_json(given.out, {**facts, **result, "samples_us": [_kept(case) for case in ran]})
    if during.reasons() and not given.anyway:
        return _not_quiet(during.reasons(), "was not quiet while it raced")
    return verdict(result)


if __name__ == "__main__":
    sys.exit(main())
