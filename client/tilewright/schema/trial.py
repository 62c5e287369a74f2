"""Results of the tuner: trials, timings, provenance and best configs."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Annotated, Any

from tilewright.schema.codec import (
    ArchName,
    Bounds,
    Count,
    KeyName,
    MaxLength,
    Pattern,
    Positive,
    Seconds,
    Sha256,
    Text,
)
from tilewright.schema.config import Config
from tilewright.schema.kernel import Resources
from tilewright.schema.problem import Extent, GemmProblem

STANDS_IN = "stands_in_for"
QUICK_METHOD = ", quick"  # the end of the method of a short race


class Outcome(StrEnum):
    """The outcome of a trial. Only ``ok`` and ``pruned`` trials have a timing."""

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
        median_us: their median; if they are few means of a second, their mean.
        low_us, high_us: interval of the median or mean in this trial or race; another one of the same
            kernel may give a time outside. Of a mean it has 99 % confidence. Of a median it is from the k-th
            smallest to the k-th largest sample, with the greatest k that gives 99 %. Of fewer than 8 samples
            it is from the smallest to the largest and has less: 3 samples (a pruned trial) give 75 %,
            5 samples (the fewest of a quick job) 93.75 %. 9 samples (of another job) give 99.61 %.
        mhz, watts: mean core clock and power during the measurement; None if unknown.
        method: name and version of the measurement method.
        disturbed: what others took of the device meanwhile, in words; empty if it had the device to itself.
    """

    samples_us: tuple[float, ...]
    median_us: Positive
    low_us: Positive
    high_us: Positive
    method: str
    mhz: float | None = None
    watts: float | None = None
    disturbed: Text = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """The state outside the config that can change a result."""

    source_digest: Annotated[str, MaxLength(64)]
    compiler: str
    driver: str
    device_class: str
    package: str
    method: str

    @property
    def quick(self) -> bool:
        """Whether it comes from a quick job, whose races are short."""
        return self.method.endswith(QUICK_METHOD)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The result of a trial on the device.

    Attributes:
        outcome: the outcome.
        message: the reason of a failure; empty otherwise.
        timing: the measurement of an ``ok`` or ``pruned`` trial.
        check_s, measure_s: seconds of each step.
        repeatable: whether launches on the same operands gave the same bits; None if that was not tested.
        own_fault: whether a failure on the device is the config's own doing and not the machine's, so that it
            is quarantined; None if the kernel did not fail there.
    """

    outcome: Outcome
    message: Text = ""
    timing: Timing | None = None
    check_s: Seconds = 0.0
    measure_s: Seconds = 0.0
    repeatable: bool | None = None
    own_fault: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Anchor:
    """What relates a trial of a helper to the job's own device: both measured the same kernel, now and then.

    Attributes:
        device: the helper.
        artifact: digest of the kernel.
        there_us: its median on the helper.
        here_us: its median on the job's device. The times of the trial are those of the helper, multiplied by
            ``here_us / there_us``.
    """

    device: Annotated[str, MaxLength(128)]
    artifact: Sha256
    there_us: Positive
    here_us: Positive


@dataclasses.dataclass(frozen=True, slots=True)
class Trial(TrialResult):
    """One config tried on one problem.

    Attributes:
        number: position within the job, from 0.
        config: the config that was tried.
        artifact: digest of the compiled kernel, if there is one.
        resources: registers and memory of the kernel.
        provenance: provenance of the result; None if nothing was compiled.
        compile_s: seconds of the compilation.
        origin: the proposer: ``initial``, ``search`` or ``final``; ``ladder`` for a kernel that was found on
            another row.
        m: the row of a ladder; None for the job's only problem.
        anchor: of a trial that another device of the class ran; None for the job's own device.
    """

    number: Count
    config: Config
    artifact: Sha256 | None = None
    resources: Resources | None = None
    provenance: Provenance | None = None
    compile_s: Seconds = 0.0
    origin: Annotated[str, Pattern("[A-Za-z0-9_.-]{0,16}")] = "search"
    m: Extent | None = None
    anchor: Anchor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """The vendor library in the final race.

    Attributes:
        name: ``cublaslt``, ``cublas``, ``numpy`` ...
        median_us: its median time in the race.
        detail: the algorithm, tile and split-K of the library as far as it reports them; ``stands_in_for`` is
            the element type of the problem if the library lacks it and ran another one instead.
    """

    name: str
    median_us: Positive
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stands_in(self) -> bool:
        """Whether the vendor library does not compute the problem itself, but a stand-in for comparison."""
        return STANDS_IN in self.detail


@dataclasses.dataclass(frozen=True, slots=True)
class VendorSamples:
    """What the vendor library took in the races of a winner: microseconds of one GEMM, one a round.

    Attributes:
        head_to_head_us: in the rounds of the winner's own samples, at the same mean clock and power.
        final_us: in the final, which chose the winner; empty if one config was left.
        winner_final_us: the winner in the same rounds.
        final_mhz, final_watts: mean core clock and power during the final; None if unknown.
        apart_us, winner_apart_us: with each launch after an empty step, by an earlier release, whose launches
            overlapped; the lower speed-up counted. Empty today.
    """

    head_to_head_us: tuple[float, ...]
    final_us: tuple[float, ...] = ()
    winner_final_us: tuple[float, ...] = ()
    final_mhz: float | None = None
    final_watts: float | None = None
    apart_us: tuple[float, ...] = ()
    winner_apart_us: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class LadderKernel:
    """A kernel of an M ladder on one of its rows.

    Attributes:
        artifact: digest of the kernel.
        regret: its time over the best that was measured on the row, less 1.
        speedup: the vendor library's time over its time, by the race of the row's winner.
    """

    artifact: Sha256
    regret: Annotated[float, Bounds(0.0, 1e12)]
    speedup: Positive


@dataclasses.dataclass(frozen=True, slots=True)
class BestConfig:
    """The winner of a job's final race on one device class: a view over trials.

    Attributes:
        problem, device_class, arch: the problem and the devices that it is the best for.
        config, artifact: the winner and the digest of its compiled kernel.
        timing: samples of the winner in the race.
        ties: configs that tie with the winner.
        baseline: the vendor library in the same race.
        speedup: baseline time over winner time, median or mean of paired rounds; above 1 the kernel wins.
        speedup_low, speedup_high: confidence interval of the speed-up in this race; in another race the same
            kernel may be outside.
        confidence: level of the interval, for instance 0.99.
        provenance: provenance of the result.
        job_id: the job that found it.
        resources: registers and memory of the winner.
        repeatable: as in the winner's :class:`Trial`.
        kernels: of a row of an M ladder, its kernels that were measured there, the winner among them; None
            for a problem that was tuned alone.
        vendor_samples: raw samples of the vendor library; None in results of releases that kept none.
    """

    problem: GemmProblem
    device_class: KeyName
    arch: ArchName
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
    kernels: tuple[LadderKernel, ...] | None = None
    vendor_samples: VendorSamples | None = None

    @property
    def regret(self) -> float:
        """The winner's time over the best that was measured on its row of a ladder, less 1; else 0."""
        return next((one.regret for one in self.kernels or () if one.artifact == self.artifact), 0.0)

    @property
    def verdict(self) -> str:
        """``kernel``, ``vendor`` or ``tie`` (the interval contains 1); ``kernel`` if the vendor library does
        not compute the problem; ``disturbed`` if others used the device meanwhile: such a race settles
        nothing."""
        if self.timing.disturbed:
            return "disturbed"
        if self.speedup_low > 1.0 or self.baseline.stands_in:
            return "kernel"
        return "vendor" if self.speedup_high < 1.0 else "tie"

    @property
    def use_vendor(self) -> bool:
        """Whether to run the vendor library: the speed-up is below 1, also if the interval contains 1, or the
        race was disturbed."""
        slower = self.speedup < 1.0 or bool(self.timing.disturbed)
        return slower and not self.baseline.stands_in

    @property
    def tflops(self) -> float:
        """Throughput of the winner in TFLOP/s at its median."""
        return self.problem.flops / self.timing.median_us / 1e6
