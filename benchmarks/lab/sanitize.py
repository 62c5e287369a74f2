"""Run compute-sanitizer over every reference kernel and configs of every family.

    python -m benchmarks.lab.sanitize --part 1/2 --seconds 250

Each kernel runs at several small sizes: whole tiles, rows that end inside a tile, and more tiles than a
device has SMs for the persistent ones. Kernels run some to a process; those of a process with a finding run
again, each in its own. The rows go to ``results/sanitizer-<device class>.json`` one by one, from the parts of
several GPUs too, and rows of today's source are not run again. Needs compute-sanitizer and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import RESULTS, SharedRows, now
from benchmarks.lab import launched
from kernels.base.family import Family
from kernels.base.spec import CompileError
from kernels.compiler.build import build, source_digest
from kernels.reference import REFERENCE_KERNELS
from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem, Layout
from tuner.devices.base import Device
from tuner.search.pool import Pool
from tuner.workers.device_worker import open_device

TOOLS = ("memcheck", "racecheck")
_SUMMARY = re.compile(
    r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?$|hazards? displayed \((\d+) errors?, (\d+) warnings?\))",
    re.MULTILINE,
)
_SIZES = ((384, 256, 512), (129, 272, 144), (129, 257, 65))
_MANY_TILES = (2320, 2064, 272)  # 19 by 9 tiles of 128 x 256
_FEW_ROWS = (8, 1040, 4112)
_A_FAMILY, _A_PROCESS, _LONGEST_S = 20, 8, 120.0
_KEYS = ("kernel", "tool")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A kernel to check; its name is that of a file."""

    name: str
    config: Config
    problem: GemmProblem


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What the tool found in one process.

    Attributes:
        errors, warnings: their numbers; None if the process did not come to its end.
        said: the first lines of the tool, or how the process ended.
    """

    errors: int | None
    warnings: int = 0
    said: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return self.errors == 0 and not self.warnings


def cases(device: DeviceSpec) -> Iterator[Case]:
    """The reference kernels at all sizes that they take, then configs of every family."""
    for reference in REFERENCE_KERNELS:
        sizes = (*_SIZES, _MANY_TILES) if reference.family == "wgmma_ws" else _SIZES
        for m, n, k in sizes:
            packed = k + -k % reference.problem.dtype.packing
            problem = dataclasses.replace(reference.problem, m=m, n=n, k=packed)
            if FAMILIES[reference.family].why_invalid(reference.config, problem, device) is None:
                yield Case(f"{reference.name}-{m}x{n}x{packed}", reference.config, problem)
    for name, family in FAMILIES.items():
        problems = [one for one in _problems(name) if family.why_unsupported(one, device) is None]
        for seed, problem in enumerate(problems):
            chosen = _configs(family, problem, device, -(-_A_FAMILY // len(problems)), seed)
            for number, config in enumerate(chosen):
                kind = f"{problem.dtype}-{problem.layout}"
                yield Case(f"{name}-{kind}-{number:02}", config, problem)


def _configs(
    family: Family[Any], problem: GemmProblem, device: DeviceSpec, count: int, seed: int
) -> list[Config]:
    """Heuristic configs, half of them at most, and configs at random."""
    pool = Pool.of(family, problem, device)
    rows = np.random.default_rng(seed).permutation(len(pool))[:count]
    first = family.heuristic_configs(problem, device)[: count // 2]
    return list(dict.fromkeys([*first, *(pool.config(int(row)) for row in rows)]))[:count]


def _problems(family: str) -> list[GemmProblem]:
    """What the configs of a family compute."""
    sizes = _FEW_ROWS if family.startswith("gemv") else _MANY_TILES
    types = (DType.FLOAT32,) if family == "simt" else (DType.FLOAT16, DType.BFLOAT16, DType.TFLOAT32)
    pairs = zip(itertools.cycle(types), (Layout.NT, Layout.NN, Layout.TN, Layout.TT), strict=False)
    return [GemmProblem(*sizes, dtype=dtype, layout=layout) for dtype, layout in pairs]


def finding(output: str, expected: int, code: int | None) -> Finding:
    """What a run of the tool over ``expected`` kernels printed; no code means that it was stopped."""
    ran = output.count("\n" + launched.SAID) + output.startswith(launched.SAID)
    lines = [line for line in output.splitlines() if line.startswith("=========")]
    said = "\n".join(lines[1:9])
    summary = _SUMMARY.search(output)
    errors, of_races, warnings = summary.groups() if summary else (0, 0, 0)
    counts = int(of_races or errors), int(warnings or 0)
    if any(counts):
        return Finding(*counts, said=said)
    if summary and ran == expected:
        return Finding(0)
    ended = "was stopped" if code is None else f"ended with {code}"
    return Finding(None, said=f"{ran} of {expected} kernels ran, the process {ended}\n{said}".strip())


def check(tool: str, kernels: Sequence[tuple[Case, Artifact]], device: str) -> Finding:
    """Run some kernels in one process under a tool."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, artifact in kernels:
            launched.write(folder, case.name, artifact, case.problem)
        tooled = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no"]
        try:
            ended = subprocess.run(
                [*tooled, *launched.command(folder, device)],
                capture_output=True, text=True, timeout=_LONGEST_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as stopped:
            return finding(_text(stopped.stdout), len(kernels), None)
        return finding(ended.stdout, len(kernels), ended.returncode)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def part_of(text: str) -> tuple[int, int]:
    """``i/n``: which of how many parts.

    Raises:
        ValueError: it is not, or there is no such part.
    """
    part, _, parts = text.partition("/")
    number, count = int(part), int(parts)
    if not 1 <= number <= count:
        raise ValueError(f"a part is i/n with i in 1 .. n, got {text!r}")
    return number, count


class _Run:
    """Checks cases until time is over, and keeps a row of each with every tool."""

    def __init__(
        self, device: Device, name: str, tools: Sequence[str], file: SharedRows, seconds: float
    ) -> None:
        self._name, self._tools, self._file, self._spec = name, tools, file, device.spec
        self._facts = {"device": device.spec.name, "driver": device.driver}
        self._ends = time.monotonic() + seconds

    def run(self, chosen: Sequence[Case], processes: int) -> None:
        """Check the cases that have no row of today's source."""
        todo = [case for case in chosen if not self.done(case)]
        with ThreadPoolExecutor(processes) as pool:
            starts = range(0, len(todo), _A_PROCESS)
            list(pool.map(self._check, [todo[at : at + _A_PROCESS] for at in starts]))

    def done(self, case: Case) -> bool:
        """Whether the file has rows of it, of processes that came to their end."""
        ended = [row for row in self._file.rows() if row["errors"] is not None]
        wanted = [self._row(case, tool).items() for tool in self._tools]
        return all(any(row.items() >= one for row in ended) for one in wanted)

    def _check(self, chosen: Sequence[Case]) -> None:
        if time.monotonic() > self._ends:
            return
        kernels = [(case, artifact) for case in chosen if (artifact := self._built(case))]
        for tool in self._tools:
            self._check_with(tool, kernels)

    def _check_with(self, tool: str, kernels: Sequence[tuple[Case, Artifact]]) -> None:
        if not kernels or time.monotonic() > self._ends:
            return
        found = check(tool, kernels, self._name)
        if not found.clean and len(kernels) > 1:
            for one in kernels:
                self._check_with(tool, [one])
            return
        for case, _ in kernels:
            told = {"errors": found.errors, "warnings": found.warnings, "said": found.said, "date": now()}
            self._file.keep(self._row(case, tool) | told)
            if not found.clean:
                sys.stderr.write(f"{tool} {case.name}: {found.said}\n")

    def _row(self, case: Case, tool: str) -> dict[str, Any]:
        source = source_digest(FAMILIES[case.config.family].source)[:12]
        named = {"kernel": case.name, "tool": tool, "problem": str(case.problem), "config": str(case.config)}
        return named | self._facts | {"source": source}

    def _built(self, case: Case) -> Artifact | None:
        try:
            return build(FAMILIES[case.config.family], case.config, case.problem, self._spec)
        except CompileError as error:
            sys.stderr.write(f"left out: {case.name}: {str(error).splitlines()[0]}\n")
            return None


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """The numbers of kernels by tool, and of those with findings."""
    lines = []
    for tool in TOOLS:
        of_tool = [row for row in rows if row["tool"] == tool]
        found = [row["kernel"] for row in of_tool if row["errors"] != 0 or row["warnings"]]
        lines.append(f"{tool}: {len(of_tool)} kernels, {len(found)} with findings {' '.join(found)}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Check this part of the kernels with every tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--part", type=part_of, default=(1, 1), help="i/n; several GPUs share the work")
    parser.add_argument("--seconds", type=float, default=250.0, help="start no process after these")
    parser.add_argument("--processes", type=int, default=6, help="so many at a time")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this tool; repeatable")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    device = open_device(given.device)
    file = SharedRows(given.out / f"sanitizer-{device.spec.device_class.id}.json", _KEYS)
    run = _Run(device, given.device, given.tool or TOOLS, file, given.seconds)
    number, count = given.part
    chosen = list(cases(device.spec))[number - 1 :: count]
    run.run(chosen, given.processes)
    left = sum(not run.done(case) for case in chosen)
    sys.stdout.write(f"{summary(file.rows())}\n{left} of {len(chosen)} are left\n")


if __name__ == "__main__":
    main()
