"""Stores of results that an H200 measured: jobs as it ran them (``h200-jobs.md``), the recorded spaces as
jobs of many trials, and the suite's rows as winners, whose samples and vendor's choices are stand-ins."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy.orm import Session

from kernels.registry import RENAMED, completed, family_named
from tilewright.artifact import Artifact, Resources
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, JobStatus, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Baseline, BestConfig, Outcome, Provenance, Timing, Trial
from tuner.replay import formats
from tuner.replay.space import Entry, RecordedSpace
from tuner.store import best, entities, jobs, misses, trials
from tuner.store.database import Store
from tuner.store.misses import Report

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
RECORDED = Path(__file__).with_name("h200-jobs.db.gz")
RACED = GemmProblem(1, 4096, 4096)  # one of its winners
SPACES = ("wgmma-4096-h200", "mma_sync-4096-h200", "wgmma-64x4096x14336-h200")
_KEPT = 100  # configs of each space, so that a test's store is made in a second


@functools.cache
def space(name: str) -> RecordedSpace:
    """A recorded space of ``benchmarks/spaces``."""
    with gzip.open(ROOT / "benchmarks" / "spaces" / f"{name}.t4.json.gz") as file:
        return formats.from_t4(json.load(file), name)


def h200() -> DeviceSpec:
    """The device that recorded them."""
    return space(SPACES[0]).device


def write(folder: Path, kept: int = _KEPT) -> Path:
    """A database in a folder of a service, filled; ``kept`` as for :func:`fill`."""
    file = folder / "tilewright.db"
    store = Store.open(f"sqlite:///{file}")
    store.migrate()
    fill(store, kept)
    store.close()
    return file


def write_recorded(folder: Path) -> Path:
    """The database of the jobs as they ran, and what :func:`fill` adds."""
    file = folder / "tilewright.db"
    file.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return write(folder)


def fill(store: Store, kept: int = _KEPT) -> None:
    """Put jobs with ``kept`` trials of each space, all winners of the suite of float16, and misses."""
    spec = h200()
    with store.begin() as session:
        for name in SPACES:
            recorded = space(name)
            _put_job(session, recorded, kept)
        rows = json.loads((RESULTS / f"suite-{_class(spec)}-float16.json").read_text())
        for row in rows:
            _put_winner(session, row, spec)
        reports = [Report(GemmProblem(m, 4096, 4096), 1000 + m, 20.0, True) for m in (24, 48, 96)]
        reports.append(Report(GemmProblem(64, 11008, 4096), 50_000, 31.0, False))
        misses.note(session, spec.device_class.id, reports, 1000)


def _class(spec: DeviceSpec) -> str:
    return spec.device_class.id


def provenance(spec: DeviceSpec) -> Provenance:
    return Provenance("5" * 64, "nvrtc 13.0", "580.95.05", spec.device_class.id, "0.1.0", "replay-v2")


def timing(
    samples: Sequence[float], method: str = "replay-v2", mhz: float = 1755.0, watts: float = 690.0
) -> Timing:
    ordered = sorted(samples)
    return Timing(tuple(samples), ordered[len(ordered) // 2], ordered[0], ordered[-1], method, mhz, watts)


def entries(recorded: RecordedSpace, count: int) -> Iterator[tuple[Config, Entry]]:
    """Configs and their results, spread over the space; a count above its size repeats them."""
    total = len(recorded.entries)
    step = max(1, total // count)
    for index in itertools.islice(itertools.cycle(range(0, total, step)), count):
        point, knobs = recorded.points[index], recorded.knobs
        values = {one.name: one.legal[at] for one, at in zip(knobs, point, strict=True)}
        yield completed(Config.of(recorded.family, values)), recorded.entries[index]


def recorded_trials(recorded: RecordedSpace, count: int) -> Iterator[Trial]:
    """The trials of a job that measured them."""
    where = provenance(recorded.device)
    for number, (config, entry) in enumerate(entries(recorded, count)):
        ok = entry.outcome is Outcome.OK
        yield Trial(
            number=number,
            config=config,
            outcome=entry.outcome,
            message=entry.message,
            timing=timing(entry.samples_us) if ok else None,
            resources=Resources(registers=entry.registers, dynamic_smem=entry.smem),
            provenance=where,
            compile_s=entry.compile_s,
            check_s=entry.check_s,
            measure_s=0.02,
            origin="initial" if number < 8 else "search",
        )


def _put_job(session: Session, recorded: RecordedSpace, count: int) -> None:
    request = TuneRequest(recorded.problem, families=(recorded.family,), max_trials=count)
    job, _ = jobs.submit(session, request, recorded.device)
    found = list(recorded_trials(recorded, count))
    for trial in found:
        trials.add(session, job.id, trial)
    winner = min((one for one in found if one.timing), key=lambda one: one.timing.median_us)  # type: ignore[union-attr]
    assert winner.timing
    vendor = Baseline(
        "cublaslt", winner.timing.median_us * 1.02, {"algorithm": 66, "tile": "128x256", "splits": 1}
    )
    stored = _best(
        recorded.problem, recorded.device, winner.config, winner.timing, vendor, (1.02, 1.015, 1.025)
    )
    progress = JobProgress("done", len(found), count, len(recorded.entries), 0, winner.timing.median_us)
    jobs.set_progress(session, job.id, dataclasses.replace(progress, best_config=str(winner.config)))
    jobs.set_result(session, job.id, dataclasses.replace(stored, job_id=job.id))
    _put(session, stored, job.id)
    jobs.close_job(session, job.id, JobStatus.SUCCEEDED, None)


def _put_winner(session: Session, row: dict[str, object], spec: DeviceSpec) -> None:
    values = {name: row[name] for name in ("m", "n", "k", "dtype", "layout")}
    problem = GemmProblem.from_dict(values)
    if best.exact(session, _class(spec), problem):
        return
    named = str(row["family"])
    knobs = row["config"]
    assert isinstance(knobs, dict)
    config = completed(Config.of(RENAMED.get(named, named), knobs))
    ours, rate = float(str(row["ours_us"])), float(str(row["ratio_vs_cublaslt_best"]))
    samples = [ours * factor for factor in (0.998, 1.0, 1.001, 0.999, 1.003, 1.0, 0.9995)]
    measured = timing(
        samples, "interleaved-v5, sustained", float(str(row["sm_mhz"])), float(str(row["watts"]))
    )
    vendor = Baseline("cublaslt", float(str(row["cublaslt_best_us"])), {"algorithm": 66})
    interval = (rate, float(str(row["ci_low"])), float(str(row["ci_high"])))
    _put(session, _best(problem, spec, config, measured, vendor, interval), "")


def _best(
    problem: GemmProblem,
    spec: DeviceSpec,
    config: Config,
    measured: Timing,
    vendor: Baseline,
    interval: tuple[float, float, float],
) -> BestConfig:
    return BestConfig(
        problem=problem,
        device_class=spec.device_class.id,
        arch=spec.arch,
        config=config,
        artifact=_artifact(config, problem, spec).digest,
        timing=measured,
        ties=(),
        baseline=vendor,
        speedup=interval[0],
        speedup_low=interval[1],
        speedup_high=interval[2],
        confidence=0.99,
        provenance=provenance(spec),
        resources=Resources(registers=168),
        repeatable=True,
    )


def _artifact(config: Config, problem: GemmProblem, spec: DeviceSpec) -> Artifact:
    """A kernel that nothing here can run: the page needs its plan alone."""
    family = family_named(config.family)
    try:
        plan = family.plan(config, problem, spec)
    except (KeyError, TypeError, ValueError):
        other = family_named("simt")
        plan = other.plan(other.heuristic_configs(problem, spec)[0], problem, spec)
    return Artifact(plan, Resources(registers=168), "5" * 64, "nvrtc 13.0", b"no machine code")


def _put(session: Session, stored: BestConfig, job_id: str) -> None:
    config, spec = stored.config, h200()
    entities.put_artifact(session, _artifact(config, stored.problem, spec))
    best.put(session, dataclasses.replace(stored, job_id=job_id))
