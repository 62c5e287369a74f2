"""The ladder: every reference kernel interleaved with cuBLAS at its document's own shape.

    tilewright bench ladder --document 000

writes into ``benchmarks/results`` (or ``--out``): ``ladder-DEVICE.json`` with one row a kernel,
``ladder-DEVICE.provenance.json`` with raw samples, compiler, clocks and watts, and the table and plot of
``benchmarks/ladder/report.py``. How it measures stands in ``benchmarks/ladder/race.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.options import RunOptions
from benchmarks.common.results import now, write_json
from benchmarks.ladder.race import ROUNDS, RUNS, climb
from benchmarks.ladder.rows import Row, provenance, rows
from kernels.compiler.build import ArtifactCache
from kernels.reference import reference_kernels
from tilewright.errors import DeviceUnavailable
from tuner.devices.base import Device
from tuner.workers.device_worker import open_device


@dataclasses.dataclass(frozen=True, slots=True)
class LadderRequest:
    """What to measure.

    Attributes:
        run: how to run.
        document: number of a reference document; None for all.
        cache: folder of compiled kernels; None compiles them again.
        runs: the parts that samples are taken in.
    """

    run: RunOptions = dataclasses.field(default_factory=RunOptions)
    document: str | None = None
    cache: Path | None = None
    runs: int = RUNS


def run_ladder(request: LadderRequest, tell: Callable[[str], None]) -> tuple[list[Row], Path]:
    """Measure, store rows and provenance; the rows and the path of their file.

    Raises:
        DeviceUnavailable: there is no such GPU here.
        ValueError: there is no such document.
        LaunchError: a kernel broke the device; the process must end.
    """
    references = reference_kernels(request.document)
    rounds, device = request.run.rounds or ROUNDS, open_device(request.run.device)
    if device.spec.kind != "cuda":
        raise DeviceUnavailable(f"the reference kernels need CUDA; {request.run.device} is not an NVIDIA GPU")
    cache = ArtifactCache(request.cache) if request.cache else None
    measurements = climb(device, references, rounds, cache, tell, request.runs, request.run.stop_after)
    path = result_path(request, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = rows(measurements)
    write_json(path, [dataclasses.asdict(row) for row in found])
    facts = {"date": now()} | provenance(device, measurements, rounds)
    write_json(path.with_suffix(".provenance.json"), facts)
    return found, path


def result_path(request: LadderRequest, device: Device) -> Path:
    """``ladder-DEVICE.json``, or ``ladder-DEVICE-document-000.json`` for one document."""
    part = f"-document-{request.document}" if request.document else ""
    return request.run.folder / f"ladder-{device.spec.device_class.id}{part}.json"
