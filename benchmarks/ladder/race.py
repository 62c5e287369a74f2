"""Races of the reference kernels with cuBLAS, as ``benchmarks/ladder/run.py`` runs them.

Each kernel is compiled and must pass the correctness check first. Kernels of one problem then run in one
race: every round takes one sample of each and of cuBLAS in a fresh random order, under sustained load, with
operands rotated past the last-level cache. cuBLAS takes part twice: with the algorithm its heuristics put
first, which is what a plain cublasGemmEx would run, and with the fastest of all it proposes, which is what
percentages are of. Figures are medians over the rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
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
from tuner.measure.interleave import equal_samplers, interleave, mean_of_known
from tuner.measure.operands import bind, rotated_sets
from tuner.measure.stats import median
from tuner.measure.vendor import fastest, vendor_choices

ROUNDS = 31
_RACE_SEED = 0


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
    artifact: Artifact | None = None
    failure: str = ""
    mhz: float | None = None
    watts: float | None = None

    @property
    def tflops(self) -> float | None:
        """Throughput in TFLOP/s at the median; None if it did not run."""
        return self.problem.flops / median(self.samples_us) / 1e6 if self.samples_us else None


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
) -> list[Measurement]:
    """Measure kernels and cuBLAS, in the order given; the vendor's rows come first in each race.

    Args:
        tell: receives one line whenever a race starts.

    Raises:
        LaunchError: a kernel broke the device; the process must end.
        DeviceUnavailable: the compiler is missing.
    """
    measurements: list[Measurement] = []
    for group in races(references):
        tell(f"{group[0].problem} (document {group[0].document}, kernels: {len(group)})")
        measurements += _race(device, group, rounds, cache)
    return measurements


def races(references: Sequence[ReferenceKernel]) -> Iterator[list[ReferenceKernel]]:
    """Neighbouring kernels of one document that compute the same problem."""
    for _, group in itertools.groupby(
        references, key=lambda reference: (reference.document, reference.problem)
    ):
        yield list(group)


def _race(
    device: Device, group: list[ReferenceKernel], rounds: int, cache: ArtifactCache | None
) -> list[Measurement]:
    kernels: list[Kernel] = []
    try:
        entries, failed = _enter(device, group, cache, kernels)
        vendors, refusal = _vendor_entries(device, group)
        running = vendors + entries
        samplers = equal_samplers(device, [entry.launches for entry in running])
        rows, states = interleave(device, samplers, rounds, _RACE_SEED)
    finally:
        for kernel in kernels:
            kernel.close()
    mhz, watts = (mean_of_known(column) for column in zip(*states, strict=True))
    ran = [
        dataclasses.replace(entry.measurement, samples_us=tuple(row), mhz=mhz, watts=watts)
        for entry, row in zip(running, rows, strict=True)
    ]
    places = {reference.name: place for place, reference in enumerate(group)}
    return sorted([*ran, *refusal, *failed], key=lambda measurement: places.get(measurement.name, -1))


def _enter(
    device: Device, group: list[ReferenceKernel], cache: ArtifactCache | None, kernels: list[Kernel]
) -> tuple[list[_Entry], list[Measurement]]:
    """Those that built and passed the check, and those that did not; loaded kernels go to ``kernels``."""
    entries, failed = [], []
    sets = rotated_sets(device, group[0].problem)
    for reference in group:
        measurement = _built(device, reference, cache)
        if measurement.artifact is not None and not measurement.failure:
            measurement = _checked(device, measurement, kernels)
        if measurement.failure:
            failed.append(measurement)
            continue
        bound = bind(device, kernels[-1], reference.problem, sets)
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


def _vendor_entries(device: Device, group: list[ReferenceKernel]) -> tuple[list[_Entry], list[Measurement]]:
    """The vendor's own first choice and its fastest; or why it takes no part."""
    first = group[0]
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


def vendor_name(first: ReferenceKernel) -> str:
    """The name of the vendor's row in the race that ``first`` opens."""
    return f"{first.document}-cublas-{first.name[4:]}"
