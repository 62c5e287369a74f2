"""``JobContext``: what every step of a tuning job works with."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from tilewright import __version__
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Provenance, Trial
from tuner.measure.race import RaceSamples
from tuner.workers.bench import TrialResult
from tuner.workers.builder import Compiled

_TRIAL_FLOPS = {"cuda": 1e11, "host": 1e9}


class JobBench(Protocol):
    """The device as a job sees it: a :class:`tuner.workers.bench.Bench`, or a recorded space."""

    spec: DeviceSpec
    driver: str

    def trial(
        self, artifact: Artifact, problem: GemmProblem, incumbent_us: float | None, timeout_s: float
    ) -> TrialResult:
        """As :meth:`tuner.workers.bench.Bench.trial`."""

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rounds: int,
        seed: int,
        timeout_s: float,
        *,
        vendor: bool = True,
    ) -> RaceSamples:
        """As :meth:`tuner.workers.bench.Bench.race`."""


class JobBuilder(Protocol):
    """The compilers as a job sees them: a :class:`tuner.workers.builder.Builder`, or a recorded space."""

    def submit(
        self, family_name: str, config: Config, problem: GemmProblem, device: DeviceSpec
    ) -> Future[Compiled]:
        """As :meth:`tuner.workers.builder.Builder.submit`."""


class Recorder(Protocol):
    """Where a job reports to and resumes from; each call commits before it returns."""

    def trials(self) -> list[Trial]:
        """Trials of this job that were already committed, by number."""

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Keep a finished trial, and its artifact where there is one."""

    def set_progress(self, progress: JobProgress) -> None:
        """Publish where the job stands."""

    def set_best(self, best: BestConfig) -> None:
        """Keep the winner of the final race."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobContext:
    """The job, the device, the compilers, the store, and whether to stop.

    Attributes:
        request, job_id: the job.
        bench: the device.
        builder: compiles configs.
        recorder: where the job reports to.
        cancelled: set to stop the job.
    """

    request: TuneRequest
    job_id: str
    bench: JobBench
    builder: JobBuilder
    recorder: Recorder
    cancelled: threading.Event

    @property
    def problem(self) -> GemmProblem:
        """What to tune."""
        return self.request.problem

    @property
    def device(self) -> DeviceSpec:
        """What to tune for."""
        return self.bench.spec

    @property
    def trial_timeout_s(self) -> float:
        """Seconds after which a trial hangs: 20, and what its operations take at a crawl."""
        return 20.0 + self.problem.flops / _TRIAL_FLOPS[self.device.kind]

    def submit(self, config: Config) -> Future[Compiled]:
        """Queue a compilation."""
        return self.builder.submit(config.family, config, self.problem, self.device)

    def provenance(self, artifact: Artifact, method: str) -> Provenance:
        """Where a result of ``artifact`` comes from; ``method`` is empty where nothing was timed."""
        return Provenance(
            source_digest=artifact.source_digest,
            compiler=artifact.compiler,
            driver=self.bench.driver,
            device_class=self.device.device_class.id,
            package=__version__,
            method=method,
        )
