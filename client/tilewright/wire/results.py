"""Configs, timings, trials and best configs on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from tilewright.config import Config
from tilewright.trial import BestConfig
from tilewright.wire.requests import ProblemFields


class View(BaseModel):
    """A response read from the attributes of a record."""

    model_config = ConfigDict(from_attributes=True)


class ConfigView(View):
    """A family's name and its knobs."""

    family: str
    knobs: dict[str, int | str]

    @field_validator("knobs", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        return dict(value) if isinstance(value, tuple) else value

    def to_config(self) -> Config:
        """The config.

        Raises:
            InvalidProblem: a knob's value is neither an integer nor a name.
        """
        return Config.of(self.family, self.knobs)


class TimingView(View):
    """A measurement; microseconds of one GEMM, MHz and watts."""

    samples_us: list[float]
    median_us: float
    low_us: float
    high_us: float
    method: str
    mhz: float | None = None
    watts: float | None = None


class ProvenanceView(View):
    """Everything outside the config that could change a result."""

    source_digest: str
    compiler: str
    driver: str
    device_class: str
    package: str
    method: str


class ResourcesView(View):
    """What one block costs: registers of a thread, the rest in bytes."""

    registers: int
    spill_bytes: int
    static_smem: int
    dynamic_smem: int


class TrialView(View):
    """One config tried; ``artifact`` is the digest of its kernel, ``repeatable`` whether launches of it gave
    the same bits, null where that was not tried."""

    number: int
    config: ConfigView
    outcome: str
    message: str
    timing: TimingView | None
    artifact: str | None
    resources: ResourcesView | None
    provenance: ProvenanceView | None
    compile_s: float
    check_s: float
    measure_s: float
    origin: str
    repeatable: bool | None = None


class ArtifactLink(BaseModel):
    """Where the kernel's binary is; ``digest`` is the SHA-256 of what ``href`` gives."""

    digest: str
    href: str


class BaselineView(View):
    """The vendor library in the same race."""

    name: str
    median_us: float
    detail: dict[str, Any]


class SpeedupView(View):
    """Vendor time over kernel time with its confidence interval; above 1 the kernel wins."""

    value: float
    low: float
    high: float
    confidence: float


class MatchView(BaseModel):
    """How the result was found: ``exact``, or ``nearest`` at a distance in octaves of m, n, k."""

    kind: str
    distance: float = 0.0


class TrustView(BaseModel):
    """What a result is worth to its user.

    Attributes:
        numerics: ``exact`` (integers), ``ieee`` (every step rounds in the accumulate type), ``tensor-core``
            (exact products, sums truncated by the hardware), ``reduced`` (operands or sums keep fewer bits
            than their type).
        deterministic: launches on the same operands were seen to give the same bits.
        staleness: ``fresh``, ``source-changed``, ``toolchain-changed`` or ``driver-changed`` since it was
            measured, as far as this service can tell; the first of these that holds, in this order.
    """

    numerics: str = "unknown"
    deterministic: bool = False
    staleness: str = "fresh"


class BestConfigView(TrustView):
    """The winner of a race, and what it won against.

    ``verdict`` is ``kernel``, ``vendor`` or ``tie``; ``use_vendor`` is true where the vendor
    library was faster in the race, if only by less than the race can tell.
    ``expected_regret`` is for near matches: by how much the time is expected to exceed that of a kernel
    tuned for the very problem (0.1: by a tenth), None where the store cannot tell.
    """

    problem: ProblemFields
    device_class: str
    arch: str
    config: ConfigView
    artifact: ArtifactLink
    timing: TimingView
    tflops: float
    baseline: BaselineView
    speedup: SpeedupView
    verdict: str
    use_vendor: bool = False
    ties: list[ConfigView]
    match: MatchView
    expected_regret: float | None = None
    provenance: ProvenanceView
    resources: ResourcesView
    job_id: str
    created: datetime

    @classmethod
    def of(cls, best: BestConfig, created: datetime, match: MatchView, trust: TrustView) -> BestConfigView:
        """From the record, and when it was stored."""
        speedup = SpeedupView(
            value=best.speedup, low=best.speedup_low, high=best.speedup_high, confidence=best.confidence
        )
        return cls(
            problem=ProblemFields.of(best.problem),
            device_class=best.device_class,
            arch=best.arch,
            config=ConfigView.model_validate(best.config),
            artifact=ArtifactLink(digest=best.artifact, href=f"/artifacts/{best.artifact}"),
            timing=TimingView.model_validate(best.timing),
            tflops=best.tflops,
            baseline=BaselineView.model_validate(best.baseline),
            speedup=speedup,
            verdict=best.verdict,
            use_vendor=best.use_vendor,
            ties=[ConfigView.model_validate(config) for config in best.ties],
            match=match,
            provenance=ProvenanceView.model_validate(best.provenance),
            resources=ResourcesView.model_validate(best.resources),
            job_id=best.job_id,
            created=created,
            **trust.model_dump(),
        )


class BestConfigList(BaseModel):
    """A page of best configs; ``next`` is the cursor of the next page."""

    items: list[BestConfigView]
    next: str | None = None
