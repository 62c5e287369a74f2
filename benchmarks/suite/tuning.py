"""Tuning in this process what the store has no winner for yet, as a job like any other."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.suite.files import Row
from benchmarks.suite.racer import Racer, SharedBench
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.job import JobProgress, JobStatus, TuneRequest
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import BestConfig
from tuner.job.tune import tune
from tuner.store import best, entities, jobs
from tuner.store.database import Store
from tuner.store.trials import JobRecorder
from tuner.workers.builder import Builder

OWNER = "bench-suite"
_NEAR = 6
_TWINS = {DType.BFLOAT16: DType.FLOAT16, DType.FLOAT8_E5M2: DType.FLOAT8_E4M3FN, DType.UINT8: DType.INT8}


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """What tuning works with.

    Attributes:
        device: its name, ``cuda:0`` or ``host``.
        database_url: where trials and winners are kept.
        compile_processes: compilers that run at once.
        cache_dir: folder of compiled kernels.
    """

    device: str
    database_url: str
    compile_processes: int
    cache_dir: Path


class SuiteTuner:
    """The store, the device's process and the compilers; the latter two start with the first job."""

    def __init__(self, tools: Tools, racer: Racer) -> None:
        """Open the store; jobs that a killed suite left running are cancelled."""
        self._tools = tools
        self._racer = racer
        self._class = racer.spec.device_class.id
        self._store = Store.open(tools.database_url)
        self._store.migrate()
        with self._store.begin() as session:
            for job_id in jobs.requeue_interrupted(session, self._class, OWNER):
                jobs.request_cancel(session, job_id)

    def winner(self, problem: GemmProblem) -> tuple[BestConfig, Artifact] | None:
        """The stored winner with its artifact; None if the problem was not tuned yet."""
        with self._store.read() as session:
            for stored in best.exact(session, self._class, problem):
                data = entities.get_artifact(session, stored.best.artifact)
                if data is not None:
                    return stored.best, Artifact.from_bytes(data)
        return None

    def tune(self, request: TuneRequest, initial_configs: Sequence[Config]) -> dict[str, Any]:
        """Run one job to its end; what it took, and under ``failure`` why it found no winner.

        Raises:
            DeviceUnavailable: the compiler or the device's libraries are missing.
            TilewrightError: another process uses the database to tune on such a device.
        """
        job_id = self._claim(request)
        recorder = _Watched(self._store, job_id)
        started, status, failure = time.monotonic(), JobStatus.CANCELLED, ""
        try:
            won = tune(
                request, job_id, self._bench, self._builder, recorder, threading.Event(), initial_configs
            )
            status = JobStatus.SUCCEEDED if won else JobStatus.FAILED
            failure = "" if won else "no config compiled, ran and gave the right result"
        except DeviceUnavailable:
            raise
        except TilewrightError as error:
            status, failure = JobStatus.FAILED, str(error)
        finally:
            with self._store.begin() as session:
                jobs.finish(session, job_id, status, failure or None)
        spent = {"tune_s": round(time.monotonic() - started, 2), "failure": failure}
        return {"job": job_id, **recorder.log(), **spent}

    def near(self, problem: GemmProblem) -> list[Config]:
        """Configs that won for near problems, the nearest first."""
        with self._store.read() as session:
            return [one.best.config for one in best.nearest(session, self._class, problem, _NEAR)]

    def close(self) -> None:
        """End the processes and close the store."""
        for name in ("_bench", "_builder"):
            if name in vars(self):
                vars(self)[name].close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @functools.cached_property
    def _bench(self) -> SharedBench:
        return SharedBench(self._tools.device, self._racer.turn)

    @functools.cached_property
    def _builder(self) -> Builder:
        return Builder(self._tools.compile_processes, self._tools.cache_dir)

    def _claim(self, request: TuneRequest) -> str:
        with self._store.begin() as session:
            job, _ = jobs.submit(session, request, self._racer.spec)
            claimed = jobs.claim(session, self._class, OWNER)
            if claimed is None or claimed.id != job.id:
                raise TilewrightError(
                    f"the database has other jobs for {self._class}: let a service finish or cancel them,"
                    " or give the suite a database of its own with TILEWRIGHT_DATABASE_URL"
                )
        return job.id


class _Watched(JobRecorder):
    """Keeps the last progress, and when the races began."""

    def __init__(self, store: Store, job_id: str) -> None:
        super().__init__(store, job_id)
        self._last = JobProgress("enumerate", 0, 0)
        self._search_s = 0.0

    def set_progress(self, progress: JobProgress) -> None:
        super().set_progress(progress)
        self._last = progress
        if progress.phase in ("search", "race"):
            self._search_s = progress.elapsed_s

    def log(self) -> dict[str, Any]:
        """Trials, and where the seconds went; the device is busy in checks, measurements and races."""
        last = self._last
        races_s = last.elapsed_s - self._search_s
        return {
            "trials": last.measured + last.failed,
            "measured": last.measured,
            "failed": last.failed,
            "valid_configs": last.valid_configs,
            "search_s": round(self._search_s, 2),
            "check_s": round(last.check_s, 2),
            "measure_s": round(last.measure_s, 2),
            "idle_s": round(last.idle_s, 2),
            "compile_s": round(last.compile_s, 2),
            "races_s": round(races_s, 2),
            "gpu_s": round(last.check_s + last.measure_s + races_s, 2),
        }


def near_rows(rows: Sequence[Row], problem: GemmProblem) -> list[Config]:
    """Winners of an earlier suite for the shapes nearest to a problem, in a database or not; where two are
    as near, first the one that did best, whichever of the twins' element types it ran in. Several of the
    problem's own shape, one of each other: twins run the same kernels."""

    def distance(row: Row) -> float:
        pairs = ((row.m, problem.m), (row.n, problem.n), (row.k, problem.k))
        return sum(math.log2(a / b) ** 2 for a, b in pairs)

    alike = [
        row
        for row in rows
        if _TWINS.get(DType(row.dtype), row.dtype) == _TWINS.get(problem.dtype, problem.dtype)
        and (row.layout, row.accumulate) == (problem.layout, problem.accumulate)
    ]
    alike.sort(key=lambda row: (distance(row), -(row.ratio_vs_cublaslt_best or 0.0)))
    of_shape = {row.shape: Config.of(row.family, row.config) for row in reversed(alike)}
    own = [Config.of(row.family, row.config) for row in alike if distance(row) == 0]
    return list(dict.fromkeys([*own[: _NEAR // 2], *(of_shape[row.shape] for row in alike)]))[:_NEAR]
