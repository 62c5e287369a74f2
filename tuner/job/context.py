"""``JobContext``: request, device, compilers and recorder of a tuning job."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from kernels.base.tile_hint import TileHint
from tilewright import __version__
from tilewright.artifact import Artifact
from tilewright.schema.codec import gathered
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, Level, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Outcome, Provenance, Trial, TrialResult
from tuner.job.slots import SlotBoard
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.timing import FEWEST_OF_QUICK, FEWEST_SAMPLES, slowest_s
from tuner.search.search import Proposal
from tuner.workers.builder import Compiled


class JobBench(Protocol):
    """The device of a job: a :class:`tuner.workers.bench.Bench` or a recorded space."""

    spec: DeviceSpec
    driver: str

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int = FEWEST_SAMPLES,
    ) -> TrialResult:
        """As :meth:`tuner.workers.bench.Bench.trial`."""

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rules: RaceRules,
        timeout_s: float,
        cancelled: threading.Event | None = None,
    ) -> RaceSamples:
        """As :meth:`tuner.workers.bench.Bench.race`."""

    def vendor_tile_hints(self, problem: GemmProblem, timeout_s: float) -> list[TileHint]:
        """As :meth:`tuner.workers.bench.Bench.vendor_tile_hints`."""


class JobBuilder(Protocol):
    """The compilers of a job: a :class:`tuner.workers.builder.Builder` or a recorded space.

    Attributes:
        processes: how many configs compile at once.
    """

    processes: int

    def submit(
        self, family_name: str, config: Config, problem: GemmProblem, device: DeviceSpec
    ) -> Future[Compiled]:
        """As :meth:`tuner.workers.builder.Builder.submit`."""


class TrialRecorder(Protocol):
    """The store of a job's trials; each call commits before it returns."""

    def trials(self) -> list[Trial]:
        """Trials of this job that were already committed, in the order in which they were."""

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Store a finished trial, and its artifact if there is one."""

    def why_quarantined(self, config: Config, today: Provenance) -> str | None:
        """Why a config must not be tried with the source, compiler and driver of ``today``; None if it may
        be."""

    def quarantine(self, trial: Trial) -> None:
        """Keep others from a config that failed by its own fault when its kernel ran again."""

    def set_progress(self, progress: JobProgress) -> None:
        """Publish the progress of the job."""


class WinnerRecorder(Protocol):
    """The store of a job's winners; each call commits before it returns."""

    def stored_best(self, problem: GemmProblem) -> BestConfig | None:
        """The winner that is stored for a problem of the job on its device class, of any job."""

    def row_results(self) -> dict[int, BestConfig]:
        """What the races of the rows of this job's ladder found, by M; empty for a job on one problem."""

    def row_errors(self) -> dict[int, str]:
        """Why rows of this job's ladder have no winner, by M."""

    def set_row_error(self, m: int, error: str) -> None:
        """Store why the row M of this job's ladder has no winner."""

    def set_best(self, best: BestConfig, artifact: Artifact, raced: BestConfig | None = None) -> bool:
        """Store the result of the final race with its kernel: with the job, and as the winner of its problem.
        A disturbed race does not replace a stored winner whose race was not disturbed, and a quick job does
        not replace one of a job that was not quick.

        Returns:
            False if the stored winner is no longer the one that ``raced``, so that it stays.
        """


InitialConfigs = Callable[[GemmProblem], Sequence[Config]]  # configs that are tried first on a problem


@dataclasses.dataclass(frozen=True, slots=True)
class JobContext:
    """What the steps of a job share: request, device, compilers, recorder, and the flag to stop.

    Attributes:
        request, job_id: the job.
        bench: the device.
        builder: compiles configs.
        recorder: stores trials and progress.
        cancelled: set to stop the job.
        quiet_wait_s: seconds for which final races that other processes disturbed are repeated.
        board: the slots through which other devices take trials of the job; None if they may not.
    """

    request: TuneRequest
    job_id: str
    bench: JobBench
    builder: JobBuilder
    recorder: TrialRecorder
    cancelled: threading.Event
    quiet_wait_s: float = 0.0
    board: SlotBoard | None = None

    @property
    def problem(self) -> GemmProblem:
        """The problem to tune."""
        return self.request.problem

    @property
    def device(self) -> DeviceSpec:
        """The device to tune for."""
        return self.bench.spec

    @property
    def trial_timeout_s(self) -> float:
        """Seconds after which a trial counts as hung."""
        return trial_timeout_s(self.problem, self.device)

    def submit(self, config: Config) -> Future[Compiled]:
        """Queue a compilation."""
        return self.builder.submit(config.family, config, self.problem, self.device)

    def tried(self, proposal: Proposal, compiled: Compiled, incumbent_us: float | None) -> Trial:
        """The trial of a compiled proposal; it runs on the device if the compilation gave a kernel."""
        trial = Trial(
            number=proposal.number,
            config=proposal.config,
            outcome=compiled.outcome,
            message=compiled.message,
            compile_s=compiled.seconds,
            origin=proposal.origin,
        )
        if compiled.artifact is None:
            return trial
        result = self.try_config(proposal.config, compiled.artifact, incumbent_us)
        return self.measured(trial, compiled.artifact, result)

    def try_config(self, config: Config, artifact: Artifact, incumbent_us: float | None) -> TrialResult:
        """The result of a kernel on the device; ``invalid``, and nothing runs, if its config is
        quarantined."""
        reason = self.recorder.why_quarantined(config, self.provenance(artifact, ""))
        if reason is not None:
            return TrialResult(outcome=Outcome.INVALID, message=reason)
        return self.trial(artifact, incumbent_us)

    def trial(self, artifact: Artifact, incumbent_us: float | None) -> TrialResult:
        """The result of a kernel on the device, with as many samples as a job of this level takes."""
        fewest = FEWEST_OF_QUICK if self.request.level is Level.QUICK else FEWEST_SAMPLES
        return self.bench.trial(artifact, self.problem, incumbent_us, self.trial_timeout_s, fewest)

    def try_again(self, trial: Trial, artifact: Artifact) -> Trial:
        """A trial with the result of running its kernel again. The result is not recorded; the config is
        quarantined if the kernel breaks the device."""
        tried = self.measured(trial, artifact, self.try_config(trial.config, artifact, None))
        if tried.own_fault:
            self.recorder.quarantine(tried)
        return tried

    def measured(self, trial: Trial, artifact: Artifact, result: TrialResult) -> Trial:
        """A trial with the result of its kernel on the device."""
        return dataclasses.replace(
            trial,
            **gathered(TrialResult, result),
            artifact=artifact.digest,
            resources=artifact.resources,
            provenance=self.provenance(artifact, result.timing.method if result.timing else ""),
        )

    def provenance(self, artifact: Artifact, method: str) -> Provenance:
        """The provenance of a result of ``artifact``; ``method`` is empty if nothing was timed."""
        return provenance(artifact, self.device, self.bench.driver, method)


def trial_timeout_s(problem: GemmProblem, device: DeviceSpec) -> float:
    """Seconds after which a trial counts as hung: 20, plus the time of its operations at a low rate."""
    return 20.0 + slowest_s(problem, device)


def provenance(artifact: Artifact, device: DeviceSpec, driver: str, method: str = "") -> Provenance:
    """The provenance of a result of ``artifact`` on a device."""
    return Provenance(
        source_digest=artifact.source_digest,
        compiler=artifact.compiler,
        driver=driver,
        device_class=device.device_class.id,
        package=__version__,
        method=method,
    )
