"""What the tuner learns: trials, timings, provenance, and the best config that follows from them."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Annotated, Any

from tilewright.schema.codec import Count, KeyName, MaxLength, Pattern, Positive, Seconds, Sha256, Text
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.resources import Resources

STANDS_IN = "stands_in_for"


class Outcome(StrEnum):
    """How a trial ended. Only ``ok`` and ``pruned`` trials carry a timing."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    PRUNED = "pruned"


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """A measurement; times are microseconds of one GEMM.

    Attributes:
        samples_us: raw samples in the order they were taken.
        median_us: their median.
        low_us, high_us: distribution-free confidence interval of the median.
        mhz, watts: mean core clock and power during the measurement; None where unknown.
        method: name and version of the measurement method.
    """

    samples_us: tuple[float, ...]
    median_us: float
    low_us: float
    high_us: float
    method: str
    mhz: float | None = None
    watts: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """Everything outside the config that could change a result."""

    source_digest: Annotated[str, MaxLength(64)]
    compiler: str
    driver: str
    device_class: str
    package: str
    method: str


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One config tried on one problem.

    Attributes:
        number: position within the job, from 0.
        config: what was tried.
        outcome: how it ended.
        message: the reason where it did not end well; empty otherwise.
        timing: the measurement of an ``ok`` or ``pruned`` trial.
        artifact: digest of the compiled kernel where there is one.
        resources: what a block of it costs.
        provenance: where the result comes from; None where nothing was compiled.
        compile_s, check_s, measure_s: seconds spent on each part.
        origin: ``initial``, ``search`` or ``final``: what proposed it.
        repeatable: whether launches on the same operands gave the same bits; None where that was not tried.
    """

    number: Count
    config: Config
    outcome: Outcome
    message: Text = ""
    timing: Timing | None = None
    artifact: Sha256 | None = None
    resources: Resources | None = None
    provenance: Provenance | None = None
    compile_s: Seconds = 0.0
    check_s: Seconds = 0.0
    measure_s: Seconds = 0.0
    origin: Annotated[str, Pattern("[A-Za-z0-9_.-]{0,16}")] = "search"
    repeatable: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """The vendor library in the final race.

    Attributes:
        name: ``cublaslt``, ``cublas``, ``numpy`` ...
        median_us: its median time in the race.
        detail: what the library chose (algorithm, tile, split-K), as far as it tells, and under
            ``stands_in_for`` the element type that it lacks where it ran another one instead.
    """

    name: str
    median_us: float
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stands_in(self) -> bool:
        """It is a yardstick only: the vendor library does not compute the problem itself."""
        return STANDS_IN in self.detail


@dataclasses.dataclass(frozen=True, slots=True)
class BestConfig:
    """The winner of a job's final race on one device class: a view over trials.

    Attributes:
        problem, device_class, arch: what it is the best for.
        config, artifact: the winner and the digest of its compiled kernel.
        timing: its samples in the race.
        ties: configs the race could not tell from the winner.
        baseline: the vendor library in the same race.
        speedup: baseline time over winner time, median of paired rounds; above 1 the kernel wins.
        speedup_low, speedup_high: confidence interval of the speed-up.
        confidence: its level, for instance 0.99.
        provenance: where the result comes from.
        job_id: the job that found it.
        resources: what a block of the winner costs.
        repeatable: as in the winner's :class:`Trial`.
    """

    problem: GemmProblem
    device_class: KeyName
    arch: KeyName
    config: Config
    artifact: Sha256
    timing: Timing
    ties: tuple[Config, ...]
    baseline: Baseline
    speedup: Positive
    speedup_low: Positive
    speedup_high: Positive
    confidence: Positive
    provenance: Provenance
    resources: Resources
    job_id: Annotated[str, Pattern("([0-9a-f]{32})?")] = ""
    repeatable: bool | None = None

    @property
    def verdict(self) -> str:
        """``kernel``, ``vendor`` or ``tie``: who won, as far as the interval tells; ``kernel`` where the
        vendor library does not compute the problem."""
        if self.speedup_low > 1.0 or self.baseline.stands_in:
            return "kernel"
        return "vendor" if self.speedup_high < 1.0 else "tie"

    @property
    def use_vendor(self) -> bool:
        """Whether to run the vendor library: the speed-up is below 1, if only by less than the race can
        tell."""
        return self.speedup < 1.0 and not self.baseline.stands_in

    @property
    def tflops(self) -> float:
        """Throughput of the winner in TFLOP/s at its median."""
        return self.problem.flops / self.timing.median_us / 1e6
