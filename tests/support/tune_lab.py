"""A bench, a builder and a recorder in memory, for tests of the tuning loop."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from toy_family import DEVICE, PROBLEM, TOY, toy_artifact

from kernels.base.tile_hint import TileHint
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, Outcome, Provenance, Timing, Trial, TrialResult
from tuner.job.context import InitialConfigs, JobContext
from tuner.job.tune import run_job
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.timing import FEWEST_SAMPLES
from tuner.workers.builder import Compiled

VENDOR_US = 120.0


class LabBuilder:
    """Compiles at once, or when the test says so; ``fails`` decides which configs do not compile.

    As with the real one, the future raises what a family makes of knobs that it does not have.
    """

    def __init__(self, fails: Callable[[Config], bool] = lambda _config: False, at_once: bool = True) -> None:
        self.fails = fails
        self.at_once = at_once
        self.processes = 1
        self.submitted: list[Config] = []
        self.futures: list[Future[Compiled]] = []
        self.registers: dict[Config, int] = {}

    def submit(
        self, family_name: str, config: Config, problem: GemmProblem, device: DeviceSpec
    ) -> Future[Compiled]:
        assert (family_name, problem.n, device.arch) == (config.family, PROBLEM.n, device.arch)
        self.submitted.append(config)
        self.futures.append(Future())
        if self.at_once:
            self.finish(self.futures[-1], config)
        return self.futures[-1]

    def finish(self, future: Future[Compiled], config: Config) -> None:
        if self.fails(config):
            future.set_result(Compiled(None, Outcome.COMPILE_ERROR, "does not compile", 0.5))
            return
        try:
            TOY.knob_values(config)
        except TypeError as error:
            future.set_exception(error)
        else:
            future.set_result(Compiled(self.artifact(config), Outcome.OK, "", 0.5))

    def artifact(self, config: Config) -> Artifact:
        return toy_artifact(config, self.registers.get(config, 32))


class LabBench:
    """Measures by the toy's cost; prunes as the real one does."""

    driver = "test driver"

    def __init__(self, spec: DeviceSpec = DEVICE) -> None:
        self.spec = spec
        self.tried: list[str] = []
        self.races: list[tuple[str, ...]] = []
        self.race_seeds: list[int] = []
        self.race_vendors: list[bool] = []
        self.on_tile_hints: Callable[[], list[TileHint]] = list
        self.on_trial: Callable[[str], Outcome] = lambda _text: Outcome.OK
        self.on_race: Callable[[Sequence[Artifact]], None] = lambda _artifacts: None
        self.wrong_under_load: set[str] = set()
        self.vendor_us = VENDOR_US
        self.fewest: set[int] = set()
        self.cost: Callable[[str], float] = _cost
        self.on_row: Callable[[str, int], float] = lambda _text, _m: 1.0
        self.under_load: Callable[[str], float] = lambda text: self.cost(text)

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int = FEWEST_SAMPLES,
    ) -> TrialResult:
        assert dataclasses.replace(problem, m=PROBLEM.m) == PROBLEM
        assert timeout_s >= 20.0
        self.fewest.add(fewest_samples)
        text = artifact.binary.decode()
        self.tried.append(text)
        outcome = self.on_trial(text)
        if outcome is not Outcome.OK:
            return TrialResult(outcome=outcome, message=f"{outcome} on purpose", check_s=0.25)
        us = self.cost(text) * self.on_row(text, problem.m)
        pruned = incumbent_us is not None and us > 1.15 * incumbent_us
        timing = Timing((us,) * 3, us, us, us, "lab")
        return TrialResult(
            outcome=Outcome.PRUNED if pruned else Outcome.OK, timing=timing, check_s=0.25, measure_s=0.125
        )

    def vendor_tile_hints(self, problem: GemmProblem, timeout_s: float) -> list[TileHint]:
        assert dataclasses.replace(problem, m=PROBLEM.m) == PROBLEM
        assert timeout_s >= 20.0
        return self.on_tile_hints()

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rules: RaceRules,
        timeout_s: float,
        cancelled: threading.Event | None = None,  # noqa: ARG002
    ) -> RaceSamples:
        assert dataclasses.replace(problem, m=PROBLEM.m) == PROBLEM
        assert timeout_s >= 20.0
        self.races.append(tuple(artifact.binary.decode() for artifact in artifacts))
        self.race_seeds.append(rules.seed)
        self.race_vendors.append(rules.vendor)
        self.on_race(artifacts)
        rng = np.random.default_rng(rules.seed)
        true_us = [self.under_load(text) * self.on_row(text, problem.m) for text in self.races[-1]]
        true_us += [self.vendor_us] * rules.vendor
        rows = [tuple((us * rng.lognormal(0.0, 0.01, rules.rounds)).tolist()) for us in true_us]
        digests = tuple(artifact.digest for artifact in artifacts)
        return RaceSamples(
            candidates=(*digests, *["vendor"] * rules.vendor),
            samples_us=tuple(rows),
            vendor_name="lab blas" if rules.vendor else "",
            vendor_detail={"tile": 8} if rules.vendor else {},
            mhz=1500.0,
            watts=300.0,
            method="lab race",
            wrong=tuple("an element is off" * (text in self.wrong_under_load) for text in self.races[-1]),
        )


class LabRecorder:
    """Keeps everything."""

    def __init__(self, known: Sequence[Trial] = ()) -> None:
        self.kept = list(known)
        self.artifacts: list[Artifact | None] = []
        self.progress: list[JobProgress] = []
        self.best: BestConfig | None = None
        self.rows: dict[int, BestConfig] = {}
        self.errors: dict[int, str] = {}
        self.stored: BestConfig | None = None
        self.on_trial: Callable[[Trial], None] = lambda _trial: None
        self.quarantined: dict[Config, str] = {}

    def trials(self) -> list[Trial]:
        return list(self.kept)

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        self.kept.append(trial)
        self.artifacts.append(artifact)
        self.on_trial(trial)

    def why_quarantined(self, config: Config, today: Provenance) -> str | None:  # noqa: ARG002
        return self.quarantined.get(config)

    def quarantine(self, trial: Trial) -> None:
        self.quarantined[trial.config] = trial.message

    def set_progress(self, progress: JobProgress) -> None:
        self.progress.append(progress)

    def stored_best(self, problem: GemmProblem) -> BestConfig | None:  # noqa: ARG002
        return self.stored

    def row_results(self) -> dict[int, BestConfig]:
        return dict(self.rows)

    def row_errors(self) -> dict[int, str]:
        return dict(self.errors)

    def set_row_error(self, m: int, error: str) -> None:
        self.errors[m] = error

    def set_best(self, best: BestConfig, artifact: Artifact, raced: BestConfig | None = None) -> bool:
        assert artifact.digest == best.artifact
        self.best = best
        if best.kernels is not None:
            self.rows[best.problem.m] = best
        return raced == self.stored


class Lab:
    """One job's surroundings."""

    def __init__(self, known: Sequence[Trial] = (), spec: DeviceSpec = DEVICE) -> None:
        self.bench = LabBench(spec)
        self.builder = LabBuilder()
        self.recorder = LabRecorder(known)
        self.cancelled = threading.Event()

    def tune(
        self, max_trials: int = 30, seed: int = 0, quiet_wait_s: float = 0.0, **options: Any
    ) -> BestConfig | None:
        request = TuneRequest(PROBLEM, families=("toy",), max_trials=max_trials, seed=seed, **options)
        return next(iter(self.run(request, quiet_wait_s=quiet_wait_s)), None)

    def run(
        self,
        request: TuneRequest,
        initial_configs: InitialConfigs = lambda _: (),
        quiet_wait_s: float = 0.0,
    ) -> list[BestConfig]:
        context = JobContext(
            request, "job-1", self.bench, self.builder, self.recorder, self.cancelled, quiet_wait_s
        )
        return run_job(context, self.recorder, initial_configs)


def config_of(text: str) -> Config:
    """The inverse of a toy config's text."""
    knobs = dict(part.split("=") for part in text[len("toy(") : -1].split(", "))
    return TOY.make(
        int(knobs["tile"]),
        int(knobs["stages"]),
        knobs["order"],
        int(knobs["split"]),
        int(knobs["vector"]),
    )


def _cost(text: str) -> float:
    return TOY.cost(config_of(text))
