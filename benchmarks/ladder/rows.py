"""The rows of ``ladder-DEVICE.json`` and their provenance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.common.results import device_facts
from benchmarks.ladder.race import Measurement
from kernels.reference import BASELINES
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import STANDS_IN
from tuner.devices.base import Device
from tuner.measure.race import METHOD

_SAME_SHARE = 1.0  # per cent of cuBLAS that are no difference


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; the fields are the keys of the JSON file.

    Attributes:
        kernel, document, family: ``cublaslt`` is the family of the vendor's rows.
        config: the knobs, or the vendor library's description of its algorithm.
        m, n, k: extents.
        tflops: TFLOP/s; None if it did not run.
        pct_cublas: per cent of the fastest cuBLAS algorithm of the same race.
        document_tflops, document_pct_cublas: the document's own figures; None if it gives none.
        smem_bytes, registers: shared memory of a block and registers of a thread; None for the vendor.
        spread_pct: slowest minus fastest run in per cent of the median; None of a single run.
        note: why it did not run, or why it does worse than in the document and how it differs from the
            kernel there.
    """

    kernel: str
    document: str
    family: str
    config: dict[str, Any]
    m: int
    n: int
    k: int
    tflops: float | None
    pct_cublas: float | None
    document_tflops: float | None
    document_pct_cublas: float | None
    smem_bytes: int | None
    registers: int | None
    note: str
    spread_pct: float | None = None


def rows(measurements: Sequence[Measurement]) -> list[Row]:
    """The row of each measurement."""
    fastest: dict[tuple[str, GemmProblem], float] = {}
    for measurement in measurements:
        if measurement.reference is None and measurement.tflops is not None:
            key = measurement.document, measurement.problem
            fastest[key] = max(measurement.tflops, fastest.get(key, 0.0))
    return [
        _row(measurement, fastest.get((measurement.document, measurement.problem)))
        for measurement in measurements
    ]


def _row(measurement: Measurement, cublas: float | None) -> Row:
    tflops, resources = measurement.tflops, measurement.artifact.resources if measurement.artifact else None
    pct = 100 * tflops / cublas if tflops is not None and cublas else None
    document_tflops, document_pct = _document_figures(measurement)
    return Row(
        kernel=measurement.name,
        document=measurement.document,
        family=measurement.reference.family if measurement.reference else "cublaslt",
        config=dict(measurement.reference.config.knobs) if measurement.reference else measurement.detail,
        m=measurement.problem.m,
        n=measurement.problem.n,
        k=measurement.problem.k,
        tflops=_rounded(tflops),
        pct_cublas=_rounded(pct),
        document_tflops=document_tflops,
        document_pct_cublas=_rounded(document_pct),
        smem_bytes=resources.static_smem + resources.dynamic_smem if resources else None,
        registers=resources.registers if resources else None,
        note=measurement.failure
        or (_reference_note(measurement, pct) if measurement.reference else _vendor_note(measurement)),
        spread_pct=_rounded(measurement.spread_pct),
    )


def _document_figures(measurement: Measurement) -> tuple[float | None, float | None]:
    if measurement.reference:
        return measurement.reference.document_tflops, measurement.reference.document_pct_cublas
    baseline = BASELINES.get(measurement.document)
    if baseline is None or measurement.name.endswith("-best"):
        return None, None
    return baseline.tflops, 100.0


def _reference_note(measurement: Measurement, pct: float | None) -> str:
    reference = measurement.reference
    assert reference is not None
    notes = []
    if _less(measurement.tflops, reference.document_tflops):
        notes.append(f"slower than in the document: {reference.slower}")
    elif _less(pct, reference.document_pct_cublas, _SAME_SHARE):
        notes.append(f"less of cuBLAS than in the document: {reference.slower}")
    if measurement.artifact and measurement.artifact.resources.spill_bytes:
        notes.append(f"spills {measurement.artifact.resources.spill_bytes} bytes a thread")
    if reference.note:
        notes.append(reference.note)
    return "; ".join(notes)


def _less(value: float | None, than: float | None, margin: float = 0.0) -> bool:
    return value is not None and than is not None and value < than - margin


def _vendor_note(measurement: Measurement) -> str:
    which = (
        "the fastest of all algorithms"
        if measurement.name.endswith("-best")
        else "the first of its heuristics"
    )
    return (
        f"{which}; runs float16 for lack of {measurement.detail[STANDS_IN]}"
        if STANDS_IN in measurement.detail
        else which
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def provenance(device: Device, measurements: Sequence[Measurement], rounds: int) -> dict[str, Any]:
    """What the figures of ``measurements`` rest on, raw samples included."""
    return {
        **device_facts(device.spec, device.driver),
        "method": METHOD,
        "rounds": rounds,
        "measurements": {
            measurement.name: _measurement_provenance(measurement) for measurement in measurements
        },
    }


def _measurement_provenance(measurement: Measurement) -> dict[str, Any]:
    built = measurement.artifact
    return {
        "problem": measurement.problem.to_dict(),
        "samples_us": [round(sample, 3) for sample in measurement.samples_us],
        "runs_us": [round(us, 3) for us in measurement.runs_us],
        "mhz": measurement.mhz,
        "watts": measurement.watts,
        "compiler": built.compiler if built else None,
        "source_digest": built.source_digest if built else None,
        "artifact": built.digest if built else None,
        "spill_bytes": built.resources.spill_bytes if built else None,
        "failure": measurement.failure,
    }
