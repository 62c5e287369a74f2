"""The seed ladders: every rung interleaved with cuBLAS at the seed's own shape.

    tilewright bench ladder --seed 000

writes into ``benchmarks/results`` (or ``--out``): ``ladder-DEVICE.json`` with one row a rung,
``ladder-DEVICE.provenance.json`` with raw samples, compiler, clocks and watts, and the table and plot of
``benchmarks/ladder_report.py``. How it measures stands in ``benchmarks/ladder_race.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from benchmarks.facts import RESULTS, now, write_json
from benchmarks.ladder_race import ROUNDS, climb
from benchmarks.ladder_rows import Row, provenance, rows
from kernels.build import ArtifactCache
from kernels.rungs import rungs_of
from tilewright.errors import DeviceUnavailable
from tuner.device_worker import open_device
from tuner.devices.base import Device


@dataclasses.dataclass(frozen=True, slots=True)
class LadderRequest:
    """What to measure.

    Attributes:
        seed: number of a seed document; None for all.
        device: ``cuda:0`` and so on.
        out: folder of the results.
        cache: folder of compiled kernels; None to compile anew.
        rounds: samples of each contender.
    """

    seed: str | None = None
    device: str = "cuda:0"
    out: Path = RESULTS
    cache: Path | None = None
    rounds: int = ROUNDS


def run_ladder(request: LadderRequest, tell: Callable[[str], None]) -> tuple[list[Row], Path]:
    """Measure, store rows and provenance; the rows and the path of their file.

    Raises:
        DeviceUnavailable: there is no such GPU here.
        ValueError: there is no such seed document.
        LaunchError: a kernel broke the device; the process must end.
    """
    rungs = rungs_of(request.seed)
    device = open_device(request.device)
    if device.spec.kind != "cuda":
        raise DeviceUnavailable(f"the rungs are CUDA kernels; {request.device} is not an NVIDIA GPU")
    cache = ArtifactCache(request.cache) if request.cache else None
    laps = climb(device, rungs, request.rounds, cache, tell)
    path = result_path(request, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = rows(laps)
    write_json(path, [dataclasses.asdict(row) for row in found])
    facts = {"date": now()} | provenance(device, laps, request.rounds)
    write_json(path.with_suffix(".provenance.json"), facts)
    return found, path


def result_path(request: LadderRequest, device: Device) -> Path:
    """``ladder-DEVICE.json``, or ``ladder-DEVICE-seed-000.json`` for one seed: no part replaces the whole."""
    part = f"-seed-{request.seed}" if request.seed else ""
    return request.out / f"ladder-{device.spec.device_class.id}{part}.json"
