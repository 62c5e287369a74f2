"""Races of the reference kernels with cuBLAS, as ``benchmarks/ladder/run.py`` runs them.

Each kernel is compiled and must pass the correctness check first. Kernels of one problem then run in one
race: every round takes one sample of each and of cuBLAS in a fresh random order, under sustained load, with
operands rotated past the last-level cache. A race has several runs, one after the other, whose medians tell
the spread. Where a document's final kernel takes part, the fastest of today's heuristic configs with the same
instruction does too. cuBLAS takes part twice: with the algorithm its heuristics put
first, which is what a plain cublasGemmEx would run, and with the fastest of all it proposes, which is what
percentages are of. Figures are medians over the rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernels.base.spec import CompileError
from kernels.compiler.build import ArtifactCache, build
from kernels.reference import ReferenceKernel
from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.launch import Kernel, Launch, load
from tilewright.schema.problem import GemmProblem
from tuner.devices.base import Device
from tuner.measure.correctness import check
from tuner.measure.interleave import equal_samplers, mean_of_known, shuffled_rounds
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median
from tuner.measure.timing import measure, settle
from tuner.measure.vendor import fastest, vendor_choices

ROUNDS, RUNS = 31, 5
_FEWEST_ROUNDS = 3  # of a run
FINAL = ("000-unroll-snake", "001-permuted-epilogue", "002-f16-f32", "003-stmatrix", "004-3b-tiling")
# Families of the same instruction as a reference kernel's.
_TUNED = {"mma_sync": ("mma_sync",), "wgmma": ("wgmma", "wgmma_ws")}


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One candidate of one race.

    Attributes:
        name: of the kernel, or of the vendor's row.
        document: number of the reference document.
        problem: what was computed.
        reference: the kernel, or None for the vendor library.
        detail: the vendor library's description of its algorithm; empty for a kernel.
        samples_us: microseconds, one a round; empty if it did not run.
        runs_us: the median of each run.
        artifact: None for the vendor library and if nothing was built.
        failure: why it did not run; empty otherwise.
        mhz, watts: mean over the rounds of its race; None if unknown.
    """

    name: str
    document: str
    problem: GemmProblem
    reference: ReferenceKernel | None = None
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)
    samples_us: tuple[float, ...] = ()
    runs_us: tuple[float, ...] = ()
    artifact: Artifact | None = None
    failure: str = ""
    mhz: float | None = None
    watts: float | None = None

    @property
    def tflops(self) -> float | None:
        """Throughput in TFLOP/s at the median; None if it did not run."""
        return self.problem.flops / median(self.samples_us) / 1e6 if self.samples_us else None

    @property
    def spread_pct(self) -> float | None:
        """Slowest minus fastest run in per cent of the median; None of fewer than two runs."""
        if len(self.runs_us) < 2:
            return None
        return 100 * (max(self.runs_us) - min(self.runs_us)) / median(self.samples_us)


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    measurement: Measurement
    launches: Sequence[Launch]
    keeps: Any = None  # NOTE: the workspace must outlive the graphs that write to it


def climb(
    device: Device,
    references: Sequence[ReferenceKernel],
    rounds: int,
    cache: ArtifactCache | None = None,
    tell: Callable[[str], None] = lambda _: None,
    runs: int = 1,
    stop_after: float = 0.0,
) -> list[Measurement]:
    """Measure kernels and cuBLAS, in the order given; the vendor's rows come first in each race.

    Args:
        tell: receives one line whenever a race starts, and one if time is up.
        runs: parts of a race, which share its rounds.
        stop_after: start no race after so many seconds; 0 for no bound.

    Raises:
        LaunchError: a kernel broke the device; the process must end.
        DeviceUnavailable: the compiler is missing.
    """
    measurements: list[Measurement] = []
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = {one.name: one for one in pool.map(lambda one: _built(device, one, cache), references)}
    for group in races(references):
        if stop_after and time.monotonic() - start > stop_after:
            tell(f"time is up: {group[0].name} and later kernels are left out")
            break
        tell(f"{group[0].problem} (document {group[0].document}, kernels: {len(group)})")
        final = next((one for one in group if one.name in FINAL), None)
        tuned = _tuned(device, final, cache) if final else None
        if tuned and tuned.reference:
            built[tuned.name] = tuned
            group = [*group, tuned.reference]
        measurements += _race(device, [built[one.name] for one in group], rounds, runs)
    return measurements


def _tuned(device: Device, final: ReferenceKernel, cache: ArtifactCache | None) -> Measurement | None:
    """The fastest right heuristic config of the families with the instruction of ``final``."""
    problem, spec = final.problem, device.spec
    configs = [
        config for name in _TUNED[final.family] for config in FAMILIES[name].heuristic_configs(problem, spec)
    ]
    name, doc = f"{final.document}-tuned", f"the fastest of {len(configs)} heuristic configs of today"
    chosen = [ReferenceKernel(name, config, problem, doc, "", note=doc) for config in configs]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda one: _built(device, one, cache), chosen))
    best: tuple[float, Measurement] | None = None
    for one in built:
        if one.artifact is None or one.artifact.resources.spill_bytes:
            continue
        kernels: list[Kernel] = []
        one = _checked(device, one, kernels)
        if not one.failure:
            found = measure(device, kernels[-1], problem, best[0] if best else None)
            if not (found.pruned or found.wrong) and (best is None or found.timing.median_us < best[0]):
                best = found.timing.median_us, one
        for kernel in kernels:
            kernel.close()
    return best[1] if best else None


def races(references: Sequence[ReferenceKernel]) -> Iterator[list[ReferenceKernel]]:
    """Neighbouring kernels of one document that compute the same problem."""
    for _, group in itertools.groupby(
        references, key=lambda reference: (reference.document, reference.problem)
    ):
        yield list(group)


def _race(device: Device, group: list[Measurement], rounds: int, runs: int) -> list[Measurement]:
    kernels: list[Kernel] = []
    try:
        entries, failed = _enter(device, group, kernels)
        vendors, refusal = _vendor_entries(device, group[0])
        running = vendors + entries
        samplers = equal_samplers(device, [entry.launches for entry in running])
        settle(device, samplers)
        each = max(_FEWEST_ROUNDS, rounds // runs)
        taken = [shuffled_rounds(device, samplers, each, random.Random(run)) for run in range(runs)]
    finally:
        for kernel in kernels:
            kernel.close()
    states = [state for of_run in taken for state in of_run.states]
    mhz, watts = (mean_of_known(column) for column in zip(*states, strict=True))
    ran = [
        dataclasses.replace(
            entry.measurement,
            samples_us=tuple(itertools.chain.from_iterable(of_run.rows[index] for of_run in taken)),
            runs_us=tuple(median(of_run.rows[index]) for of_run in taken),
            mhz=mhz,
            watts=watts,
        )
        for index, entry in enumerate(running)
    ]
    places = {one.name: place for place, one in enumerate(group)}
    return sorted([*ran, *refusal, *failed], key=lambda measurement: places.get(measurement.name, -1))


def _enter(
    device: Device, group: list[Measurement], kernels: list[Kernel]
) -> tuple[list[_Entry], list[Measurement]]:
    """Those that built and passed the check, and those that did not; loaded kernels go to ``kernels``."""
    entries, failed = [], []
    sets = rotated_sets(device, group[0].problem)
    for measurement in group:
        if measurement.artifact is not None and not measurement.failure:
            measurement = _checked(device, measurement, kernels)
        if measurement.failure:
            failed.append(measurement)
            continue
        bound = bind(device, kernels[-1], measurement.problem, sets)
        entries.append(_Entry(measurement, bound.launches, (bound, sets)))
    return entries, failed


def _built(device: Device, reference: ReferenceKernel, cache: ArtifactCache | None) -> Measurement:
    measurement = Measurement(reference.name, reference.document, reference.problem, reference)
    family = FAMILIES[reference.family]
    reason = family.why_invalid(reference.config, reference.problem, device.spec)
    if reason:
        return dataclasses.replace(measurement, failure=f"not for {device.spec.arch}: {reason}")
    try:
        return dataclasses.replace(
            measurement, artifact=build(family, reference.config, reference.problem, device.spec, cache)
        )
    except CompileError as error:
        return dataclasses.replace(measurement, failure=f"does not compile: {str(error).splitlines()[0]}")


def _checked(device: Device, measurement: Measurement, kernels: list[Kernel]) -> Measurement:
    assert measurement.artifact is not None
    try:
        kernels.append(load(measurement.artifact))
        wrong = check(device, kernels[-1], measurement.problem)
    except LaunchError as error:
        if error.sticky:
            raise
        return dataclasses.replace(measurement, failure=f"does not run: {error}")
    return dataclasses.replace(measurement, failure=f"wrong result: {wrong}") if wrong else measurement


def _vendor_entries(device: Device, first: Measurement) -> tuple[list[_Entry], list[Measurement]]:
    """The vendor's own first choice and its fastest; or why it takes no part."""
    name = vendor_name(first)
    try:
        choices = vendor_choices(device, first.problem)
    except DeviceUnavailable as error:
        return [], [Measurement(name, first.document, first.problem, failure=str(error))]
    found = ((name, choices[0]), (f"{name}-best", fastest(device, choices)))
    return [
        _Entry(
            Measurement(label, first.document, first.problem, detail={"library": one.name} | one.detail),
            one.launches,
            choices,
        )
        for label, one in found
    ], []


def vendor_name(first: Measurement | ReferenceKernel) -> str:
    """The name of the vendor's row in the race that ``first`` opens."""
    return f"{first.document}-cublas-{first.name[4:]}"
