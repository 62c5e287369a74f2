"""The rows of ``ladder-DEVICE.json`` and their provenance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.common.results import device_facts
from benchmarks.ladder.race import Lap
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


def rows(laps: Sequence[Lap]) -> list[Row]:
    """One row a lap."""
    fastest: dict[tuple[str, GemmProblem], float] = {}
    for lap in laps:
        if lap.reference is None and lap.tflops is not None:
            key = lap.document, lap.problem
            fastest[key] = max(lap.tflops, fastest.get(key, 0.0))
    return [_row(lap, fastest.get((lap.document, lap.problem))) for lap in laps]


def _row(lap: Lap, cublas: float | None) -> Row:
    tflops, resources = lap.tflops, lap.artifact.resources if lap.artifact else None
    pct = 100 * tflops / cublas if tflops is not None and cublas else None
    document_tflops, document_pct = _document_figures(lap)
    return Row(
        kernel=lap.name,
        document=lap.document,
        family=lap.reference.family if lap.reference else "cublaslt",
        config=dict(lap.reference.config.knobs) if lap.reference else lap.detail,
        m=lap.problem.m,
        n=lap.problem.n,
        k=lap.problem.k,
        tflops=_rounded(tflops),
        pct_cublas=_rounded(pct),
        document_tflops=document_tflops,
        document_pct_cublas=_rounded(document_pct),
        smem_bytes=resources.static_smem + resources.dynamic_smem if resources else None,
        registers=resources.registers if resources else None,
        note=lap.failure or (_reference_note(lap, pct) if lap.reference else _vendor_note(lap)),
    )


def _document_figures(lap: Lap) -> tuple[float | None, float | None]:
    if lap.reference:
        return lap.reference.document_tflops, lap.reference.document_pct_cublas
    baseline = BASELINES.get(lap.document)
    if baseline is None or lap.name.endswith("-best"):
        return None, None
    return baseline.tflops, 100.0


def _reference_note(lap: Lap, pct: float | None) -> str:
    reference = lap.reference
    assert reference is not None
    notes = []
    if _less(lap.tflops, reference.document_tflops):
        notes.append(f"slower than in the document: {reference.slower}")
    elif _less(pct, reference.document_pct_cublas, _SAME_SHARE):
        notes.append(f"less of cuBLAS than in the document: {reference.slower}")
    if lap.artifact and lap.artifact.resources.spill_bytes:
        notes.append(f"spills {lap.artifact.resources.spill_bytes} bytes a thread")
    if reference.note:
        notes.append(reference.note)
    return "; ".join(notes)


def _less(value: float | None, than: float | None, margin: float = 0.0) -> bool:
    return value is not None and than is not None and value < than - margin


def _vendor_note(lap: Lap) -> str:
    which = "the fastest of all algorithms" if lap.name.endswith("-best") else "the first of its heuristics"
    return f"{which}; runs float16 for lack of {lap.detail[STANDS_IN]}" if STANDS_IN in lap.detail else which


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def provenance(device: Device, laps: Sequence[Lap], rounds: int) -> dict[str, Any]:
    """What the figures of ``laps`` rest on, raw samples included."""
    return {
        **device_facts(device.spec, device.driver),
        "method": METHOD,
        "rounds": rounds,
        "laps": {lap.name: _lap_provenance(lap) for lap in laps},
    }


def _lap_provenance(lap: Lap) -> dict[str, Any]:
    built = lap.artifact
    return {
        "problem": lap.problem.to_dict(),
        "samples_us": [round(sample, 3) for sample in lap.samples_us],
        "mhz": lap.mhz,
        "watts": lap.watts,
        "compiler": built.compiler if built else None,
        "source_digest": built.source_digest if built else None,
        "artifact": built.digest if built else None,
        "spill_bytes": built.resources.spill_bytes if built else None,
        "failure": lap.failure,
    }
