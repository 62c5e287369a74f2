"""Tuning as a user has it on the first day: empty database and cache, default options; then a race."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.common.results import device_facts, now, sources
from kernels.base.spec import Language
from kernels.base.tile_hint import TileHint
from kernels.compiler.build import compiler_version
from kernels.registry import families_for
from tilewright import __version__
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError, TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import BestConfig, Outcome
from tuner.job.context import JobContext
from tuner.job.neighbours import first_tries
from tuner.job.progress import PHASES
from tuner.job.tune import run_job
from tuner.measure.race import METHOD, RaceRules, RaceSamples
from tuner.measure.stats import CONFIDENCE, Ratio, median
from tuner.store import entities, jobs
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.trials import JobRecorder
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder

ROUNDS, PASSES = 48, 2
QUIET_WAIT_S = 20.0  # as a service's jobs
FAILURES = (TilewrightError, RuntimeError)  # of a shape; the latter is a programming error in a worker
DEVICE_PHASES = ("check", "measure", "race")
_OWNER = "bench-fresh"
_RACE_TIMEOUT_S = 600.0
_DISTRIBUTIONS = ("numpy", "cupy-cuda13x", "nvmath-python", "nvidia-cublas", "torch")


@dataclasses.dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a job.

    Attributes:
        winners: by M; empty if it failed.
        seconds: from its submission to its end.
        phases_s: the part of them in each phase that its progress distinguishes.
        trials: measured and failed ones; of_row: those of each M of a ladder.
        missing: why a row of a ladder has no winner, by M.
        failure: the reason, empty if it went well; traceback: of a programming error.
    """

    winners: dict[int, BestConfig]
    seconds: float
    phases_s: Mapping[str, float]
    trials: int
    failure: str
    traceback: str = ""
    of_row: Mapping[int, int] = dataclasses.field(default_factory=dict)
    missing: Mapping[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A kernel in a race with the vendor library's fastest algorithm.

    Attributes:
        samples: of the race.
        back_to_back, apart: the vendor's time over ours: with launches that follow each other, and with an
            empty step before each launch, whose time counts in both.
    """

    samples: RaceSamples
    back_to_back: Ratio
    apart: Ratio

    def row(self) -> dict[str, Any]:
        """The figures of a row of results; the interval is that of the lower ratio."""
        lower = min(self.back_to_back, self.apart, key=lambda ratio: ratio.value)
        return {
            "ours_us": _rounded(median(self.samples.samples_us[0])),
            "vendor_us": _rounded(median(self.samples.samples_us[1])),
            "ratio_back_to_back": _rounded(self.back_to_back.value),
            "ratio_apart": _rounded(self.apart.value),
            "ci_low": _rounded(lower.low),
            "ci_high": _rounded(lower.high),
            "vendor": self.samples.vendor_name,
            "disturbed": list(self.samples.interference),
        }

    def facts(self) -> dict[str, Any]:
        """The evidence of the row: the samples of both, and the vendor's algorithm."""
        ours, vendor = self.samples.samples_us
        apart = dict(zip(("ours", "vendor"), self.samples.apart_us, strict=True))
        return {
            "samples_us": {"ours": ours, "vendor": vendor},
            "apart_us": apart,
            "vendor_detail": self.samples.vendor_detail,
            "mhz": self.samples.mhz,
            "watts": self.samples.watts,
            "method": self.samples.method,
        }


class FreshTuner:
    """A device with its compilers and an empty database; all of it is gone when it closes.

    Attributes:
        bench: the device.
    """

    def __init__(self, device: str, compile_processes: int) -> None:
        """Start the device's process and the compilers.

        Raises:
            DeviceUnavailable: there is no such device here, or its libraries are missing.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-fresh-"))
            self.bench = Bench(device)
            stack.callback(self.bench.close)
            self._builder = Builder(compile_processes, Path(folder) / "cache")
            stack.callback(self._builder.close)
            self._folder, self._store = Path(folder), _empty_store(folder)
            stack.callback(lambda: self._store.close())
            self._rehearsed = False
            self._stack = stack.pop_all()

    def __enter__(self) -> FreshTuner:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rehearse(self, dtype: DType) -> None:
        """Get a GPU ready for the first trial of a type, as an idle service does until its first job.

        Other failures than a missing library are left to the jobs, which report them.

        Raises:
            DeviceUnavailable: a library is missing.
        """
        if self.bench.spec.kind == "host":
            return
        try:
            self.bench.rehearse(dtype)
            self._rehearsed = True
        except DeviceUnavailable:
            raise
        except FAILURES:
            pass

    def forget(self) -> None:
        """Go on with an empty database; what is compiled stays."""
        self._store.close()
        self._store = _empty_store(self._folder)

    def tune(self, request: TuneRequest) -> Tuned:
        """Run a job to its end, as a service does.

        Raises:
            DeviceUnavailable: the compiler or the device's libraries are missing.
        """
        started = time.monotonic()
        with self._store.begin() as session:
            job, _ = jobs.submit(session, request, self.bench.spec)
            claims.claim(session, self._device_class, _OWNER)
        with self._ended(job.id) as outcome:
            recorder = JobRecorder(self._store, job.id)
            context = JobContext(
                request, job.id, self.bench, self._builder, recorder, threading.Event(), QUIET_WAIT_S
            )
            initial = functools.partial(first_tries, self._store, self.bench.spec)
            found = run_job(context, recorder, initial)
            outcome["winners"] = {best.problem.m: best for best in found}
        with self._store.read() as session:
            record = jobs.get(session, job.id)
        progress = record.progress if record else None
        seconds = round(time.monotonic() - started, 2)
        known = recorder.trials() if request.ladder else []
        return Tuned(
            seconds=seconds,
            of_row=Counter(trial.m for trial in known if trial.m),
            missing=recorder.row_errors(),
            phases_s={name: round(getattr(progress, f"{name}_s"), 2) for name in PHASES if progress},
            trials=progress.measured + progress.failed if progress else 0,
            **outcome,
        )

    def compare(
        self, best: BestConfig, problem: GemmProblem, rounds: int = ROUNDS, seed: int = 0
    ) -> Comparison:
        """Race a winner on a problem, which its kernel must be able to run.

        Raises:
            TilewrightError: the kernel or the vendor library does not run, or the kernel is wrong.
        """
        rules = RaceRules(rounds, seed, PASSES, every=True, apart=True)
        samples = self.bench.race([self.kernel_of(best)], problem, rules, _RACE_TIMEOUT_S)
        if samples.wrong:
            raise LaunchError(f"{best.config} gave wrong results in the race: {samples.wrong[0]}; tune again")
        return Comparison(samples, samples.ratio(1, 0), samples.ratio(1, 0, apart=True))

    def kernel_of(self, best: BestConfig) -> Artifact:
        """The kernel of a winner."""
        with self._store.read() as session:
            data = entities.get_artifact(session, best.artifact)
        assert data is not None
        return Artifact.from_bytes(data)

    def built(self, configs: Iterable[Config], problem: GemmProblem) -> dict[Config, Artifact]:
        """The kernels of the configs that compile and give the right result."""
        spec = self.bench.spec
        builds = [(one, self._builder.submit(one.family, one, problem, spec)) for one in configs]
        compiled = {config: artifact for config, build in builds if (artifact := build.result().artifact)}
        return {
            config: artifact
            for config, artifact in compiled.items()
            if self.bench.trial(artifact, problem, None, _RACE_TIMEOUT_S).outcome is Outcome.OK
        }

    def race_hints(self, problem: GemmProblem, hints: Iterable[TileHint]) -> tuple[list[str], RaceSamples]:
        """Race the vendor library with the first config of each family for each hint. Returns the configs and
        the samples; the vendor library's samples come last.

        Raises:
            InvalidProblem: none of them compiles and gives the right result.
            TilewrightError: the race failed.
        """
        spec = self.bench.spec
        families = families_for(problem, spec).values()
        configs = dict.fromkeys(
            config
            for hint in hints
            for family in families
            for config in family.configs_from_hint(hint, problem, spec)[:1]
        )
        kernels = self.built(configs, problem)
        if not kernels:
            raise InvalidProblem("no config that follows a hint compiles and gives the right result")
        rules = RaceRules(ROUNDS // 2, 0, passes=1)
        samples = self.bench.race(list(kernels.values()), problem, rules, _RACE_TIMEOUT_S)
        return list(map(str, kernels)), samples

    def facts(self) -> dict[str, Any]:
        """The facts common to all rows of this run."""
        language: Language = "cuda" if self.bench.spec.kind == "cuda" else "c"
        return {
            "date": now(),
            **device_facts(self.bench.spec, self.bench.driver),
            "gpu": self.bench.identity,
            "package": __version__,
            "sources": sources(),
            "method": METHOD,
            "rehearsed": self._rehearsed,
            "libraries": {"compiler": compiler_version(language), **_libraries()},
            "confidence": CONFIDENCE,
        }

    @property
    def _device_class(self) -> str:
        return self.bench.spec.device_class.id

    @contextlib.contextmanager
    def _ended(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Ends the job with what the block put into ``winners``, or with the reason why it failed."""
        outcome: dict[str, Any] = {
            "winners": {},
            "failure": "no config compiled, ran and gave the right result",
        }
        try:
            yield outcome
        except DeviceUnavailable:
            raise
        except FAILURES as error:
            outcome |= {"failure": reason(error), "traceback": traceback_of(error)}
        finally:
            status = JobStatus.SUCCEEDED if outcome["winners"] else JobStatus.FAILED
            outcome["failure"] = "" if outcome["winners"] else outcome["failure"]
            with self._store.begin() as session:
                jobs.finish(session, job_id, status, outcome["failure"] or None)


def traceback_of(error: Exception) -> str:
    """The traceback of a programming error, a worker's or of this process; empty for any other error."""
    notes = _notes(error)
    if notes or isinstance(error, TilewrightError):
        return notes
    return "".join(traceback.format_exception(error)).strip()


def reason(error: Exception) -> str:
    """An error in words; that of a worker ends with the last line of its traceback."""
    return ": ".join(filter(None, (str(error), _notes(error).rpartition("\n")[2])))


def _notes(error: Exception) -> str:
    """The traceback that came with an error of a worker; empty without one."""
    return "".join(getattr(error, "__notes__", ())).strip()


def _empty_store(folder: str | Path) -> Store:
    store = Store.open(f"sqlite:///{tempfile.mkdtemp(dir=folder)}/tilewright.db")
    store.migrate()
    return store


def _libraries() -> dict[str, str]:
    """The versions of the libraries that race and measure; a library that is not installed is left out."""
    found = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
