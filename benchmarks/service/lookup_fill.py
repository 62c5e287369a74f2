"""A SQLite database with as many trials as asked for, each problem with a winner and its kernel."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from typing import Any

from sqlalchemy import insert, text

from tilewright import Artifact, Config, DeviceSpec, DType, GemmProblem, Layout
from tilewright.artifact import Grid, LaunchPlan, Resources, Serves
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.trial import Baseline, BestConfig, Outcome, Provenance, Timing
from tuner.store import best, entities, jobs
from tuner.store.database import Store
from tuner.store.models import TrialRow
from tuner.store.records import utc_now

ARCH = "sm_90"
DEVICE = DeviceSpec("cuda", ARCH, "filled", sm_count=132, memory_bytes=141 << 30, l2_bytes=50 << 20)
CLASS = DEVICE.device_class.id
TRIALS_A_JOB = 1000
PROVENANCE = Provenance("a" * 64, "nvrtc 13.0", "driver 580", CLASS, "0.1.0", "interleaved-v5, sustained")
PROVENANCE_COLUMN = dataclasses.asdict(PROVENANCE)
RESOURCES = dataclasses.asdict(Resources(168))


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """What the database was filled with."""

    problems: list[GemmProblem]
    digests: list[str]
    seconds: float


def fill(url: str, trials: int, trials_a_job: int = TRIALS_A_JOB) -> Filled:
    """A database with so many trials, and a winner for each job's problem."""
    started = time.monotonic()
    store = Store.open(url)
    store.migrate()
    shapes = random.Random(0)
    sizes = [64 * step for step in range(1, 257)]
    problems = list({_problem(shapes, sizes): None for _ in range(2 * trials // trials_a_job)})
    problems = problems[: trials // trials_a_job]
    digests = [_fill_job(store, index, problem, trials_a_job) for index, problem in enumerate(problems)]
    with store.engine.connect() as connection:
        connection.execute(text("ANALYZE"))
    store.close()
    return Filled(problems, digests, time.monotonic() - started)


def improve(url: str, problem: GemmProblem) -> None:
    """Have the winner of a problem beaten by one that is twice as far ahead of the vendor library."""
    store = Store.open(url)
    with store.begin() as session:
        [stored] = best.exact(session, CLASS, problem)
        best.put(session, dataclasses.replace(stored.best, speedup=1.2, speedup_low=1.19, speedup_high=1.21))
    store.close()


def _problem(shapes: random.Random, sizes: list[int]) -> GemmProblem:
    m, n, k = shapes.choices(sizes, k=3)
    return GemmProblem(m, n, k, DType.FLOAT16, Layout.NT)


def _fill_job(store: Store, index: int, problem: GemmProblem, trials: int) -> str:
    artifact = _artifact(index, problem)
    with store.begin() as session:
        job, _ = jobs.submit(session, TuneRequest(problem, max_trials=trials), DEVICE)
        digest = entities.put_artifact(session, artifact)
        rows = [_trial(job.id, number, digest) for number in range(trials)]
        session.execute(insert(TrialRow.__table__), rows)  # type: ignore[arg-type]
        best.put(session, _winner(problem, digest, job.id))
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
    return digest


def _artifact(index: int, problem: GemmProblem) -> Artifact:
    plan = LaunchPlan("cubin", ARCH, "gemm", (256, 1, 1), Grid(128, 128), (), Serves.of(problem))
    return Artifact(plan, Resources(168), "a" * 64, "nvrtc 13.0", index.to_bytes(4, "big") * 6000)


@functools.cache
def _config(number: int) -> Config:
    """The config of a trial; the first of each job wins, so that winners were measured on other problems, and
    answer for near ones."""
    return Config.of("wgmma", {"bm": 128, "bn": 256, "stages": 4, "number": number})


def _trial(job_id: str, number: int, digest: str) -> dict[str, Any]:
    median = 100.0 + number
    samples = [round(median + 0.013 * i, 3) for i in range(16)]
    return {
        "job_id": job_id,
        "number": number,
        "family": "wgmma",
        "source_digest": None,
        "config": _config(number).to_dict(),
        "config_digest": _config(number).digest,
        "outcome": Outcome.OK,
        "message": "",
        "median_us": median,
        "timing": {
            "samples_us": samples,
            "median_us": median,
            "low_us": median,
            "high_us": median + 1.0,
            "method": "rotated-v1",
            "mhz": None,
            "watts": None,
        },
        "artifact": digest,
        "resources": RESOURCES,
        "provenance": PROVENANCE_COLUMN,
        "compile_s": 0.3,
        "check_s": 0.01,
        "measure_s": 0.05,
        "origin": "search",
        "created": utc_now(),
    }


def _winner(problem: GemmProblem, digest: str, job_id: str) -> BestConfig:
    return BestConfig(
        problem=problem,
        device_class=CLASS,
        arch=ARCH,
        config=_config(0),
        artifact=digest,
        timing=Timing(tuple(100.0 + 0.01 * i for i in range(64)), 100.3, 100.1, 100.5, "interleaved-v5"),
        ties=(),
        baseline=Baseline("cublaslt", 110.0, {"algorithm": 7}),
        speedup=1.1,
        speedup_low=1.09,
        speedup_high=1.11,
        confidence=0.99,
        provenance=PROVENANCE,
        resources=Resources(168),
        job_id=job_id,
    )
